/** Seconds without a sign of life, after which time stands still: the server says something each 15. */
const SILENCE = 20
/** By how much, in a second, the two clocks may drift apart. */
const DRIFT = 0.001

/** The time of a live feed's clock between two frames, as far as it can be told from here. */
export class LiveClock {
  /** How far the feed's clock is ahead of this one: frames come late, so it is the most seen. */
  private offset = -Infinity
  private last = -Infinity

  /** `now` is in seconds, since whenever. */
  constructor(private readonly now: () => number) {}

  /** A frame of `time` has come. */
  heard(time: number): void {
    const now = this.now()
    const drifted = this.offset - DRIFT * (now - this.last)
    this.offset = Math.max(time - now, Number.isNaN(drifted) ? -Infinity : drifted)
    this.last = now
  }

  /** Something has come, but no frame. */
  alive(): void {
    if (this.last > -Infinity) this.last = this.now()
  }

  /** The feed is lost. */
  stop(): void {
    this.offset = this.last = -Infinity
  }

  /** null while nobody knows. */
  get time(): number | null {
    const now = this.now()
    return now - this.last > SILENCE ? null : now + this.offset
  }
}
