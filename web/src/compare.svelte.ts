import type { Frame } from './feed/frames'
import { frameOf, readLines } from './feed/source'
import { latencies } from './feed/series'
import { Timeline } from './feed/timeline'

export const SIDES = ['a', 'b'] as const
export type Side = (typeof SIDES)[number]

/** In the order in which they are offered. */
export const ALLOCATORS = ['paged', 'contiguous-max', 'contiguous-pow2', 'contiguous-oracle'] as const

export interface Asked {
  against: string
  allocator: string
  arrivals: string
  rate: number
  num_blocks: number
  seconds: number
  seed: number
}

export interface Setup {
  kind: 'setup'
  a: string
  b: string
  seconds: number
  requests: number
  cut: boolean
  num_blocks: number
  block_size: number
  longest: number
}

export interface End {
  kind: 'end'
  time: number
  refused: Record<Side, number>
  /** Seconds of a processor that it took. */
  worked: number
}

type Line = Setup | End | { kind: 'problem'; message: string } | (Frame & { side: Side })

/** What one side has come to at a moment. */
export interface Figures {
  running: number
  waiting: number
  finished: number
  tokens: number
  speed: number
  waste: number
  pool: number
  ttft: number | null
}

/** Two engines on the same arrivals, played like a recording: both are always at the same time. */
export class Comparison {
  /** Goes up with each moment that is shown, and with what comes. */
  version = $state(0)
  setup = $state.raw<Setup | null>(null)
  end = $state.raw<End | null>(null)
  problem = $state('')
  /** While it is being computed. */
  busy = $state(false)
  playing = $state(false)
  speed = $state(4)
  time = 0
  sides: Record<Side, Timeline> = { a: new Timeline(), b: new Timeline() }
  private control: AbortController | null = null

  /** How far both have been computed. */
  get length(): number {
    return Math.min(this.sides.a.end, this.sides.b.end)
  }

  async run(asked: Asked, key: string): Promise<void> {
    this.stop()
    const control = (this.control = new AbortController())
    this.sides = { a: player(), b: player() }
    this.setup = this.end = null
    this.problem = ''
    this.time = 0
    this.busy = this.playing = true
    try {
      const query = new URLSearchParams(Object.entries(asked).map(([k, v]) => [k, String(v)]))
      const answer = await fetch(`compare?${query}`, {
        headers: key ? { authorization: `Bearer ${key}` } : {},
        signal: control.signal,
        cache: 'no-store',
      })
      if (!answer.ok || !answer.body) {
        const told = (await answer.json().catch(() => null)) as { error?: { message: string } } | null
        throw new Error(told?.error?.message ?? `HTTP ${answer.status}`)
      }
      await readLines(answer.body, (lines) => {
        for (const line of lines) if (line) this.take(JSON.parse(line) as Line, line)
        this.show()
      })
    } catch (error) {
      if (control.signal.aborted) return
      this.problem = error instanceof Error ? error.message : String(error)
    }
    if (this.control === control) this.busy = false
  }

  /** End what is being computed; what there is stays. */
  stop(): void {
    this.control?.abort()
    this.control = null
    this.busy = false
  }

  tick(seconds: number): void {
    if (!this.playing || !this.setup) return
    const time = Math.min(this.time + seconds * this.speed, this.length)
    if (time >= this.length && !this.busy) this.playing = false
    if (time > this.time) this.seek(time)
  }

  seek(time: number): void {
    this.time = Math.min(Math.max(time, 0), this.length)
    this.show()
  }

  figures(side: Side): Figures {
    const { moment, lanes, series } = this.sides[side]
    const { count, usage, picture } = moment
    const at = series.at(this.time)
    let finished = 0
    for (const lane of lanes.all) if (lane.ended <= this.time) finished++
    return {
      running: count.running,
      waiting: count.waiting + count.heldBack,
      finished,
      tokens: picture.counters?.output_tokens ?? 0,
      speed: at < 0 ? 0 : series.columns.generated[at]!,
      waste: usage.waste,
      pool: usage.pool,
      ttft: latencies(lanes.all, this.time).ttft[0] ?? null,
    }
  }

  private take(line: Line, text: string): void {
    if (line.kind === 'setup') this.setup = line
    else if (line.kind === 'end') this.end = line
    else if (line.kind === 'problem') this.problem = line.message
    else {
      const frame = frameOf(text)
      if (frame) this.sides[line.side].push([frame])
    }
  }

  private show(): void {
    for (const side of SIDES) if (!this.sides[side].empty) this.sides[side].seek(this.time)
    this.version++
  }
}

function player(): Timeline {
  const timeline = new Timeline()
  timeline.whole = true
  timeline.following = false
  return timeline
}

export const comparison = new Comparison()
