import type { Lane } from './lanes'
import type { Picture } from './picture'
import type { Tally, Usage } from './usage'

export const COLUMNS = [
  ...['time', 'physical', 'pool', 'effective', 'reserved', 'internal', 'external'],
  ...['held', 'cached', 'free', 'shared', 'saved', 'running', 'waiting', 'heldBack'],
  ...['generated', 'computed', 'hitRate', 'preemptions', 'copies'],
] as const

export type Column = (typeof COLUMNS)[number]

const MAX_POINTS = 20_000
/** Seconds over which speeds are averaged. */
const SPEED_WINDOW = 2

/** Figures over time, a point a frame. */
export class Series {
  readonly columns: Record<Column, number[]>
  private readonly totals: { time: number; generated: number; computed: number }[] = []

  constructor() {
    this.columns = Object.fromEntries(COLUMNS.map((name) => [name, []])) as never
  }

  get length(): number {
    return this.columns.time.length
  }

  /** Of the picture as it is at `at`. */
  add(picture: Picture, usage: Usage, count: Tally, at = picture.time): void {
    const { counters } = picture
    // A frame may come after it was thought that there is none.
    const time = Math.max(at, this.columns.time.at(-1) ?? at)
    const now = { time, generated: counters.output_tokens, computed: counters.computed_tokens }
    this.totals.push(now)
    while (this.totals.length > 2 && this.totals[1]!.time < time - SPEED_WINDOW) this.totals.shift()
    const before = this.totals[0]!
    const seconds = Math.max(0.1, now.time - before.time)
    const slots = Math.max(1, usage.stored + usage.reserved + usage.internal + usage.external)
    this.push({
      time,
      physical: usage.physical,
      pool: usage.pool,
      effective: usage.effective,
      reserved: usage.reserved / slots,
      internal: usage.internal / slots,
      external: usage.external / slots,
      held: count.held,
      cached: count.cached,
      free: count.free,
      shared: count.shared,
      saved: usage.blocksSaved,
      running: count.running,
      waiting: count.waiting,
      heldBack: count.heldBack,
      generated: Math.max(0, now.generated - before.generated) / seconds,
      computed: Math.max(0, now.computed - before.computed) / seconds,
      hitRate: counters.prefix_queries ? counters.prefix_hits / counters.prefix_queries : 0,
      preemptions: counters.preemptions,
      copies: counters.copies,
    })
  }

  /** The index of the last point at `time` or before; -1 if there is none. */
  at(time: number): number {
    const times = this.columns.time
    let low = 0
    let high = times.length
    while (low < high) {
      const middle = (low + high) >> 1
      if (times[middle]! <= time) low = middle + 1
      else high = middle
    }
    return low - 1
  }

  private push(point: Record<Column, number>): void {
    for (const name of COLUMNS) {
      this.columns[name].push(point[name])
      if (this.columns[name].length > MAX_POINTS) this.columns[name].splice(0, MAX_POINTS / 4)
    }
  }
}

export const SHARES = [0.5, 0.95, 0.99] as const

/** Percentiles, of `SHARES`. */
export interface Latencies {
  count: number
  ttft: (number | null)[]
  tpot: (number | null)[]
}

/** Of the last requests that had ended at `time`. In seconds. */
export function latencies(lanes: readonly Lane[], time: number, most = 200): Latencies {
  const ttft: number[] = []
  const tpot: number[] = []
  for (let i = lanes.length - 1; i >= 0 && ttft.length < most; i--) {
    const lane = lanes[i]!
    if (lane.ended > time || lane.first === null) continue
    ttft.push(lane.first - lane.arrival)
    const after = lane.tokens - lane.prompt - 1
    if (after > 0) tpot.push((lane.ended - lane.first) / after)
  }
  return {
    count: ttft.length,
    ttft: SHARES.map((share) => percentile(ttft, share)),
    tpot: SHARES.map((share) => percentile(tpot, share)),
  }
}

export function percentile(values: number[], share: number): number | null {
  if (values.length === 0) return null
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(share * sorted.length) - 1))]!
}

/** A percentage beside an axis, without decimals that are 0. */
export function whole(percent: string): string {
  return percent.replace(/\.0%$/, '%')
}

/** Where an axis from 0 to `high` has its labels. Above 1 they are whole numbers: counts are shown
 * without decimals, and 7.5 would be called 8. */
export function ticks(high: number): number[] {
  const wanted = high / 4
  const power = 10 ** Math.floor(Math.log10(wanted))
  const steps = [1, 2, 2.5, 5, 10].map((m) => m * power)
  const step = steps.find((s) => s >= wanted && (wanted < 1 || Number.isInteger(s)))!
  const result: number[] = []
  for (let value = 0; value <= high; value += step) result.push(value)
  return result
}
