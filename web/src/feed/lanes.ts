import type { Delta, Snapshot } from './frames'
import type { Picture } from './picture'

export type Phase = 'waiting' | 'held' | 'running' | 'preempted' | 'swapped'

export interface Segment {
  phase: Phase
  start: number
  /** Infinity while it goes on. */
  end: number
  cause: string
}

/** Numbers that one mark takes in `Lane.marks`: start, end, tokens (negative for a prompt's). */
export const MARK = 3
const MAX_MARKS = 3000 * MARK
const MAX_LANES = 4000

export interface Lane {
  n: number
  id: string
  arrival: number
  ended: number
  reason: string
  prompt: number
  tokens: number
  cached: number | null
  preemptions: number
  first: number | null
  segments: Segment[]
  /** What steps computed of it, in order. */
  marks: number[]
}

/** What an export tells of a request that had ended before its first frame. */
export interface EndedRow extends Partial<Pick<Lane, 'id' | 'reason' | 'prompt' | 'tokens'>> {
  n: number
  ended: number
  arrival?: number
  cached?: number | null
  preemptions?: number
  first?: number | null
}

/** The way of each request through time. Grows with the feed; a moment is shown by looking at it. */
export class Lanes {
  /** In the order in which they came. */
  readonly all: Lane[] = []
  private readonly byNumber = new Map<number, Lane>()

  get(n: number): Lane | undefined {
    return this.byNumber.get(n)
  }

  /** Before the first frame. */
  restore(rows: readonly EndedRow[]): void {
    for (const row of rows) Object.assign(this.lane(row.n, row.arrival ?? row.ended), row)
  }

  /** Those that had ended at `time`, the last `most` of them. */
  endedBy(time: number, most: number): EndedRow[] {
    return this.all
      .filter((lane) => lane.ended <= time)
      .slice(-most)
      .map(({ segments: _, marks: __, ...row }) => row)
  }

  /** A snapshot in the place of what was not told: whatever is open there goes on here. */
  begin(frame: Snapshot): void {
    const live = new Set(frame.requests.map((request) => request.n))
    for (const lane of this.all) {
      if (lane.ended === Infinity && !live.has(lane.n)) this.end(lane, frame.time, '')
    }
    for (const news of frame.requests) {
      const known = this.byNumber.has(news.n)
      const lane = this.lane(news.n, news.arrival ?? frame.time)
      this.learn(lane, news)
      if (!known) this.phase(lane, phaseOf(news.status, lane, news.kept ?? 0), lane.arrival, '')
    }
  }

  /** `picture` has the delta already. */
  apply(delta: Delta, picture: Picture): void {
    for (const news of delta.requests ?? []) {
      this.learn(this.lane(news.n, news.arrival ?? delta.time), news)
    }
    for (const [time, n, status, cause] of delta.moves ?? []) {
      const lane = this.lane(n, time)
      if (status === 'finished') {
        this.end(lane, time, cause)
        continue
      }
      this.phase(lane, phaseOf(status, lane, picture.readers.get(n)?.kept ?? 0), time, cause)
    }
    for (const [, , start, end, parts] of delta.steps ?? []) {
      for (const [n, tokens, drafts, samples] of parts) {
        const lane = this.byNumber.get(n)
        if (!lane) continue
        // Of a decoding request there is a sample for each token, also where steps are added up.
        const prompt = samples === 0 || tokens - drafts > samples
        lane.marks.push(start, end, prompt ? -tokens : tokens)
        if (lane.marks.length > MAX_MARKS) lane.marks.splice(0, MAX_MARKS / 2)
      }
    }
  }

  /** Those that were there at some time between `from` and `to`. */
  between(from: number, to: number): Lane[] {
    return this.all.filter((lane) => lane.arrival <= to && lane.ended >= from)
  }

  private learn(lane: Lane, news: Partial<Lane>): void {
    for (const name of ['id', 'prompt', 'tokens', 'preemptions', 'cached', 'first'] as const) {
      if (news[name] !== undefined) Object.assign(lane, { [name]: news[name] })
    }
  }

  private phase(lane: Lane, phase: Phase, start: number, cause: string): void {
    const last = lane.segments.at(-1)
    if (last && last.end === Infinity) {
      if (last.phase === phase && last.cause === cause) return
      last.end = Math.max(last.start, start)
    }
    lane.segments.push({ phase, start, end: Infinity, cause })
  }

  private end(lane: Lane, time: number, reason: string): void {
    const last = lane.segments.at(-1)
    if (last && last.end === Infinity) last.end = Math.max(last.start, time)
    lane.ended = Math.max(lane.arrival, time)
    lane.reason = reason
  }

  private lane(n: number, arrival: number): Lane {
    let lane = this.byNumber.get(n)
    if (!lane) {
      lane = {
        n,
        id: '',
        arrival,
        ended: Infinity,
        reason: '',
        prompt: 0,
        tokens: 0,
        cached: null,
        preemptions: 0,
        first: null,
        segments: [],
        marks: [],
      }
      this.byNumber.set(n, lane)
      this.all.push(lane)
      if (this.all.length > MAX_LANES) {
        for (const old of this.all.splice(0, MAX_LANES / 4)) this.byNumber.delete(old.n)
      }
    }
    return lane
  }
}

function phaseOf(status: string | undefined, lane: Lane, kept: number): Phase {
  if (status === 'running' || status === 'held') return status
  const last = lane.segments.at(-1)
  const wasRunning = last?.phase === 'running' || last?.phase === 'preempted'
  if (!wasRunning) return 'waiting'
  return kept > 0 ? 'swapped' : 'preempted'
}
