import type { LiveClock } from './clock'
import type { Delta, Frame } from './frames'
import { newestWithin, snapshotOf } from './excerpt'
import { Lanes, type EndedRow } from './lanes'
import { Picture } from './picture'
import { Series } from './series'
import { tally, UsageMeter, type Tally, type Usage } from './usage'

export type FlashKind = 'written' | 'copied' | 'evicted'

export interface Flash {
  block: number
  kind: FlashKind
}

export interface CopyMade {
  source: number
  destination: number
}

/** What the views show: one moment, and what has just happened there. */
export interface Moment {
  picture: Picture
  usage: Usage
  count: Tally
  filled: Uint16Array
}

export interface Excerpt {
  frames: Frame[]
  ended: EndedRow[]
}

/** As many as latencies are taken from. */
const MAX_ENDED = 200

interface Keyframe {
  /** Index of the frame that it holds already. */
  index: number
  picture: Picture
}

/** Frames; more where a keyframe takes more memory. */
const KEYFRAME_EVERY = 64
const BLOCKS_PER_FRAME = 400
/** Of a live feed; a recording is kept whole. */
const MAX_FRAMES = 6000

/** Seconds without a frame, after which a live feed's time goes on by itself; and between two points
 * of the series while it does. */
const QUIET = 0.15
const QUIET_POINT = 1

export interface Listener {
  /** The moment is another one; `flashes` and `copies` happened on the way, if it was a step on. */
  moved(flashes: Flash[], copies: CopyMade[], jumped: boolean): void
}

/**
 * All frames, and where in them the page is: at the end of a live feed, or wherever somebody went.
 */
export class Timeline {
  readonly lanes = new Lanes()
  readonly series = new Series()
  moment: Moment
  /** Follows what comes. */
  following = true
  playing = true
  speed = 1
  /** Whether all frames are to be kept. */
  whole = false
  /** At which the page is, in the feed's time. */
  time = 0

  private frames: Frame[] = []
  private keyframes: Keyframe[] = []
  /** Index of the next frame to show. */
  private next = 0
  /** The newest state, from which keyframes are made. */
  private newest = new Picture()
  private started = false
  private readonly shown = new UsageMeter()
  private readonly ahead = new UsageMeter()
  private listeners = new Set<Listener>()
  /** How far time has gone on without frames. */
  private until = 0

  /** Without a clock there is no time but that of the frames. */
  constructor(readonly clock: LiveClock | null = null) {
    const picture = new Picture()
    this.moment = {
      picture,
      usage: this.shown.measure(picture),
      count: tally(picture),
      filled: this.shown.filled,
    }
  }

  get empty(): boolean {
    return !this.started
  }

  get start(): number {
    return this.frames[0]?.time ?? 0
  }

  get end(): number {
    return Math.max(this.until, this.lastFrame)
  }

  private get lastFrame(): number {
    return this.frames.at(-1)?.time ?? 0
  }

  listen(listener: Listener): () => void {
    this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }

  /** Frames have come. False if one does not follow: the feed has to begin again. */
  push(frames: Frame[]): boolean {
    for (const frame of frames) {
      if (frame.kind === 'snapshot') {
        if (this.started && frame.time < this.lastFrame) this.forget()
        this.newest = new Picture(frame)
        this.lanes.begin(frame)
        this.started = true
      } else if (!this.started || !this.newest.apply(frame)) {
        return false
      } else {
        this.lanes.apply(frame, this.newest)
      }
      this.frames.push(frame)
      const index = this.frames.length - 1
      const last = this.keyframes.at(-1)
      const every = Math.max(KEYFRAME_EVERY, this.newest.numBlocks / BLOCKS_PER_FRAME)
      if (frame.kind === 'snapshot' || !last || index - last.index >= every) {
        this.keyframes.push({ index, picture: this.newest.copy() })
      }
      this.series.add(this.newest, this.ahead.measure(this.newest), tally(this.newest))
    }
    if (frames.length) this.clock?.heard(this.lastFrame)
    this.trim()
    if (this.following) this.advance(this.end)
    return true
  }

  /** Go to a time. Forward, all that happens on the way is told; backward, it is a jump. */
  seek(time: number): void {
    this.following = false
    this.go(Math.min(Math.max(time, this.start), this.end))
  }

  /** The moment that is shown, and so many seconds before it, as far as they take no more than
   * `most` characters: what another page can show. */
  excerpt(seconds: number, most: number): Excerpt {
    const first = this.indexAt(this.time - seconds)
    // With the next frame: between two, that one tells what happened.
    const after = this.frames.slice(first + 1, this.next + 1)
    const kept = newestWithin(after, most)
    const picture = this.pictureAt(first + kept)!
    return {
      frames: [snapshotOf(picture), ...after.slice(kept)],
      ended: this.lanes.endedBy(picture.time, MAX_ENDED),
    }
  }

  /** To the frame after, or before. */
  step(by: 1 | -1): void {
    this.playing = false
    this.following = false
    const index = Math.min(Math.max(this.next - 1 + by, 0), this.frames.length - 1)
    const frame = this.frames[index]
    if (frame) this.go(frame.time)
  }

  follow(): void {
    this.following = true
    this.playing = true
    this.advance(this.end)
  }

  /** So many seconds of the viewer's time have passed. */
  tick(seconds: number): void {
    const now = this.clock?.time ?? null
    if (now !== null && this.started && now - this.end >= QUIET) this.goOn(now)
    if (this.following || !this.playing || !this.started) return
    const time = this.time + seconds * this.speed
    if (time >= this.end) {
      if (this.whole) this.playing = false
      else this.following = true
    }
    this.go(Math.min(time, this.end))
  }

  /** Nothing has happened until `time`. */
  private goOn(time: number): void {
    this.until = time
    if (time - (this.series.columns.time.at(-1) ?? 0) >= QUIET_POINT) {
      this.series.add(this.newest, this.ahead.measure(this.newest), tally(this.newest), time)
    }
    if (this.following) this.advance(time)
    else this.tell([], [], false)
  }

  private go(time: number): void {
    if (time >= this.time && this.next > 0) this.advance(time)
    else this.rewind(time)
  }

  private advance(time: number): void {
    const flashes: Flash[] = []
    const copies: CopyMade[] = []
    let jumped = false
    let picture = this.moment.picture
    const from = this.next
    while (this.next < this.frames.length && this.frames[this.next]!.time <= time) {
      const frame = this.frames[this.next++]!
      if (frame.kind === 'snapshot') {
        picture = new Picture(frame)
        jumped = true
      } else {
        const before = progress(picture)
        picture.apply(frame)
        if (!jumped) {
          happened(frame, picture, before, flashes)
          for (const [, source, destination] of frame.copies ?? []) {
            copies.push({ source, destination })
          }
        }
      }
    }
    this.time = time
    if (this.next > from) this.show(picture, flashes, copies, jumped)
    else this.tell([], [], false)
  }

  private rewind(time: number): void {
    const index = this.indexAt(time)
    const picture = this.pictureAt(index)
    if (!picture) return
    this.next = index + 1
    this.time = time
    this.show(picture, [], [], true)
  }

  /** Of the last frame at `time` or before; of the first, if there is none. */
  private indexAt(time: number): number {
    let low = 0
    let high = this.frames.length
    while (low < high) {
      const middle = (low + high) >> 1
      if (this.frames[middle]!.time <= time) low = middle + 1
      else high = middle
    }
    return Math.max(0, low - 1)
  }

  /** As it was at a frame. */
  private pictureAt(index: number): Picture | null {
    let keyframe = this.keyframes[0]
    for (const candidate of this.keyframes) if (candidate.index <= index) keyframe = candidate
    if (!keyframe) return null
    let picture = keyframe.picture.copy()
    for (let i = keyframe.index + 1; i <= index; i++) {
      const frame = this.frames[i]!
      if (frame.kind === 'snapshot') picture = new Picture(frame)
      else picture.apply(frame)
    }
    return picture
  }

  private show(picture: Picture, flashes: Flash[], copies: CopyMade[], jumped: boolean): void {
    const usage = this.shown.measure(picture)
    this.moment = { picture, usage, count: tally(picture), filled: this.shown.filled }
    this.tell(flashes, copies, jumped)
  }

  private tell(flashes: Flash[], copies: CopyMade[], jumped: boolean): void {
    for (const listener of this.listeners) listener.moved(flashes, copies, jumped)
  }

  private trim(): void {
    if (this.whole || this.frames.length <= MAX_FRAMES) return
    const first = this.keyframes.find((keyframe) => keyframe.index >= MAX_FRAMES / 4)
    if (!first || first.index >= this.next) return
    this.frames.splice(0, first.index)
    this.keyframes = this.keyframes.filter((keyframe) => keyframe.index >= first.index)
    for (const keyframe of this.keyframes) keyframe.index -= first.index
    this.next -= first.index
  }

  /** The engine has started anew: its clock too. */
  private forget(): void {
    this.frames = []
    this.keyframes = []
    this.next = 0
    this.time = 0
    this.until = 0
    this.clock?.stop()
    this.lanes.all.length = 0
    for (const column of Object.values(this.series.columns)) column.length = 0
  }
}

/** How far each request has come. */
function progress(picture: Picture): Map<number, number> {
  const result = new Map<number, number>()
  for (const reader of picture.readers.values()) {
    if (reader.status === 'running') result.set(reader.n, reader.computed)
  }
  return result
}

function happened(
  delta: Delta,
  picture: Picture,
  before: Map<number, number>,
  flashes: Flash[],
): void {
  const size = picture.blockSize
  for (const { n, computed } of delta.requests ?? []) {
    const reader = picture.readers.get(n)
    if (!reader || computed === undefined || reader.status !== 'running') continue
    const from = before.get(n) ?? reader.cached ?? 0
    for (let i = Math.floor(from / size); i * size < computed; i++) {
      const block = reader.table[i]
      // One more token each time would be no more than noise.
      if (block !== undefined && computed - from > 1) flashes.push({ block, kind: 'written' })
    }
  }
  for (const block of delta.evicted ?? []) flashes.push({ block, kind: 'evicted' })
  for (const [, , block] of delta.copies ?? []) flashes.push({ block, kind: 'copied' })
}
