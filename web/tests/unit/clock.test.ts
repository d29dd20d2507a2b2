import { expect, test } from 'vitest'
import { LiveClock } from '../../src/feed/clock'
import type { Delta, Snapshot } from '../../src/feed/frames'
import { Timeline } from '../../src/feed/timeline'

const counters = {
  steps: 0,
  computed_tokens: 0,
  output_tokens: 0,
  prefix_queries: 0,
  prefix_hits: 0,
  preemptions: 0,
  held_back: 0,
  copies: 0,
}

function snapshot(seq: number, time: number): Snapshot {
  return {
    kind: 'snapshot',
    format: 1,
    seq,
    time,
    wall_time: 0,
    model: '',
    block_size: 4,
    num_blocks: 8,
    block_bytes: 0,
    blocks: [],
    requests: [],
    tables: [],
    counters,
    tiers: null,
  }
}

function delta(seq: number, time: number, output: number): Delta {
  return { kind: 'delta', seq, time, counters: { ...counters, output_tokens: output } }
}

test('the clock goes on between frames, and is never behind one', () => {
  let now = 1000
  const clock = new LiveClock(() => now)
  expect(clock.time).toBe(null)
  clock.heard(50)
  now += 3
  expect(clock.time).toBe(53)
  clock.heard(52.5) // came half a second late: the clock is the same, but for what may be drift
  expect(clock.time).toBeCloseTo(53, 2)
  clock.heard(53.2)
  expect(clock.time).toBeCloseTo(53.2)
})

test('it stands still where nobody says anything, and after the feed is lost', () => {
  let now = 0
  const clock = new LiveClock(() => now)
  clock.heard(10)
  now = 15
  clock.alive()
  now = 30
  expect(clock.time).toBe(40)
  now = 36
  expect(clock.time).toBe(null)
  clock.heard(46)
  clock.stop()
  expect(clock.time).toBe(null)
  clock.alive()
  expect(clock.time).toBe(null)
})

test('without traffic the page scrolls on, and speeds fall to zero', () => {
  let now = 0
  const timeline = new Timeline(new LiveClock(() => now))
  timeline.push([snapshot(0, 100)])
  for (let i = 1; i <= 20; i++) {
    now = i / 10
    timeline.push([delta(i, 100 + now, 8 * i)])
    timeline.tick(0.016)
  }
  const { columns } = timeline.series
  expect(timeline.time).toBeCloseTo(102)
  expect(columns.generated.at(-1)).toBeCloseTo(80)
  for (let i = 0; i < 400; i++) {
    now += 0.0125
    timeline.tick(0.0125)
  }
  expect(timeline.following).toBe(true)
  expect(timeline.time).toBeGreaterThan(106.8)
  expect(timeline.time).toBeLessThanOrEqual(107.001)
  expect(columns.generated.at(-1)).toBe(0)
  expect(columns.time.length).toBeLessThan(21 + 6)
  // One that comes late is taken in all the same, and time never goes back.
  const before = timeline.time
  expect(timeline.push([delta(21, 106.5, 168)])).toBe(true)
  expect(timeline.time).toBeGreaterThanOrEqual(before)
  expect(timeline.moment.picture.seq).toBe(21)
  expect([...columns.time]).toEqual([...columns.time].sort((a, b) => a - b))
})

test('paused, only the end goes on; a new engine begins anew', () => {
  let now = 0
  const timeline = new Timeline(new LiveClock(() => now))
  timeline.push([snapshot(0, 100), delta(1, 101, 1)])
  timeline.seek(100.5)
  timeline.playing = false
  now = 5
  timeline.tick(0.016)
  expect(timeline.time).toBe(100.5)
  expect(timeline.end).toBe(106)
  timeline.follow()
  expect(timeline.time).toBe(106)
  // Connected again: the same engine, whose frame is older than what the clock said.
  timeline.push([snapshot(7, 105.5)])
  expect(timeline.start).toBe(100)
  timeline.push([snapshot(0, 3)])
  expect(timeline.start).toBe(3)
  expect(timeline.time).toBe(3)
})

test('a recording has no time but that of its frames', () => {
  const timeline = new Timeline()
  timeline.push([snapshot(0, 100), delta(1, 101, 1)])
  timeline.tick(5)
  expect(timeline.time).toBe(101)
  expect(timeline.end).toBe(101)
})
