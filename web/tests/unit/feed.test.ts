import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import type { Delta, Frame, Snapshot } from '../../src/feed/frames'
import { Lanes } from '../../src/feed/lanes'
import { Picture } from '../../src/feed/picture'
import { percentile, ticks } from '../../src/feed/series'
import { frameOf, Lines, readRecording } from '../../src/feed/source'
import { Timeline } from '../../src/feed/timeline'
import { tally, UsageMeter } from '../../src/feed/usage'

// Made by tests/studio/test_page_data.py from the real bookkeeping: what the core said at the end
// of each moment stands beside the frames.
interface Moment {
  seq: number
  blocks: [id: number, refs: number, hash: string | null, tokens: number][]
  requests: Record<string, { tokens: number; computed: number; status: string; table: number[] }>
  usage: Record<string, number>
}
const { frames, moments } = JSON.parse(
  readFileSync(new URL('recording.json', import.meta.url), 'utf8'),
) as { frames: Frame[]; moments: Moment[] }

function check(picture: Picture, moment: Moment): void {
  const shown = []
  for (let id = 0; id < picture.numBlocks; id++) {
    const hash = picture.hashes[id] ?? null
    if (picture.refs[id] || hash) shown.push([id, picture.refs[id], hash, picture.found[id]])
  }
  expect(shown).toEqual(moment.blocks)
  const requests = Object.fromEntries(
    [...picture.readers.values()].map(({ id, tokens, computed, status, table }) => [
      id,
      { tokens, computed, status, table },
    ]),
  )
  expect(requests).toEqual(moment.requests)
  expect(new UsageMeter().measure(picture)).toMatchObject(moment.usage)
}

test('a picture is what the core says at every moment', () => {
  const picture = new Picture(frames[0] as Snapshot)
  const bySeq = new Map(moments.map((moment) => [moment.seq, moment]))
  let checked = 0
  for (const frame of frames.slice(1)) {
    expect(picture.apply(frame as Delta)).toBe(true)
    const moment = bySeq.get(frame.seq)
    if (moment) {
      check(picture, moment)
      checked++
    }
  }
  expect(checked).toBe(moments.length)
  expect(checked).toBeGreaterThan(50)
})

test('every moment can be gone back to, and a gap is noticed', () => {
  const timeline = new Timeline()
  expect(timeline.push([frames[1]!])).toBe(false)
  expect(timeline.push(frames)).toBe(true)
  expect(timeline.moment.picture.seq).toBe(frames.at(-1)!.seq)
  for (const moment of [...moments].reverse().concat(moments.slice(0, 5))) {
    const frame = frames.find(({ seq }) => seq === moment.seq)!
    timeline.seek(frame.time)
    check(timeline.moment.picture, moment)
  }
  timeline.follow()
  expect(timeline.moment.picture.seq).toBe(frames.at(-1)!.seq)
  expect(timeline.push([frames[2]!])).toBe(false)
})

test('going on tells what happened on the way, once', () => {
  const timeline = new Timeline()
  timeline.following = false
  timeline.whole = true
  timeline.push(frames)
  timeline.seek(timeline.start)
  let copies = 0
  let evicted = 0
  timeline.listen({
    moved(flashes, made) {
      copies += made.length
      evicted += flashes.filter(({ kind }) => kind === 'evicted').length
    },
  })
  timeline.playing = true
  for (let i = 0; i < 2000 && timeline.playing; i++) timeline.tick(1)
  const deltas = frames.slice(1) as Delta[]
  expect(copies).toBe(deltas.reduce((sum, delta) => sum + (delta.copies?.length ?? 0), 0))
  expect(evicted).toBe(deltas.reduce((sum, delta) => sum + (delta.evicted?.length ?? 0), 0))
  expect(copies).toBeGreaterThan(0)
  expect(evicted).toBeGreaterThan(0)
})

test('lanes are without gaps from arrival to end', () => {
  const lanes = new Lanes()
  const picture = new Picture(frames[0] as Snapshot)
  lanes.begin(frames[0] as Snapshot)
  for (const frame of frames.slice(1) as Delta[]) {
    picture.apply(frame)
    lanes.apply(frame, picture)
  }
  expect(lanes.all.length).toBeGreaterThan(20)
  let preempted = 0
  for (const lane of lanes.all) {
    lane.segments.slice(1).forEach((segment, i) => expect(segment.start).toBe(lane.segments[i]!.end))
    expect(lane.segments.at(-1)!.end === Infinity).toBe(lane.ended === Infinity)
    preempted += lane.segments.filter(({ phase }) => phase === 'preempted').length
  }
  expect(preempted).toBe(picture.counters.preemptions)
  const counted = tally(picture)
  expect(counted.free + counted.cached + counted.held).toBe(picture.numBlocks)
})

test('lines are put together from pieces', () => {
  const lines = new Lines()
  expect(lines.push('a')).toEqual([])
  expect(lines.push('b\nc\n\nd')).toEqual(['ab', 'c', ''])
  expect(lines.push('\n')).toEqual(['d'])
})

test('a recording of another format, or of something else, is refused', async () => {
  expect(() => frameOf(JSON.stringify({ ...frames[0], format: 99 }))).toThrow('99')
  const sink = { frames: () => undefined, status: () => undefined }
  for (const text of ['', '{}\n', 'x\n', `${JSON.stringify(frames[1])}\n`]) {
    await expect(readRecording(new Blob([text]).stream(), sink)).rejects.toThrow()
  }
})

test('percentiles', () => {
  expect(percentile([], 0.5)).toBe(null)
  expect(percentile([3, 1, 2], 0.5)).toBe(2)
  expect(percentile([...Array(100).keys()], 0.95)).toBe(94)
})

test('labels of an axis are whole numbers where counts are', () => {
  expect(ticks(9 * 1.08)).toEqual([0, 5])
  expect(ticks(4)).toEqual([0, 1, 2, 3, 4])
  expect(ticks(100)).toEqual([0, 25, 50, 75, 100])
  expect(ticks(1)).toEqual([0, 0.25, 0.5, 0.75, 1])
  for (let high = 4; high < 2e5; high *= 1.3) {
    expect(ticks(high).every(Number.isInteger)).toBe(true)
    expect(ticks(high).length).toBeGreaterThan(1)
  }
})
