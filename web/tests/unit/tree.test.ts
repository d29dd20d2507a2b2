import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import type { Frame, Snapshot } from '../../src/feed/frames'
import { Picture, type Reader } from '../../src/feed/picture'
import { layOut, prefixTree, type Run } from '../../src/feed/tree'
import { UsageMeter } from '../../src/feed/usage'

function picture(tables: number[][]): Picture {
  const result = new Picture({
    kind: 'snapshot',
    format: 1,
    seq: 0,
    time: 0,
    wall_time: 0,
    model: '',
    block_size: 4,
    num_blocks: 1000,
    block_bytes: 0,
    blocks: [],
    requests: tables.map((_, n) => ({ n, id: `r${n}`, status: 'running' as const })),
    tables: tables.map((table, n) => [n, 0, table]),
    counters: {} as never,
    tiers: null,
  })
  return result
}

const full = new Array<number>(1000).fill(4)
const names = (readers: readonly Reader[]) => readers.map(({ id }) => id)

test('shared runs, who reads them, and what that saves', () => {
  const tree = prefixTree(
    picture([[1, 2, 3], [1, 2, 4, 5], [1, 2], [9, 8], [], [1, 2, 4, 6]]),
    full,
  )
  expect(tree).toMatchObject({ readers: 5, entries: 15, blocks: 8, tokensSaved: 28, length: 4 })
  const [prefix, alone] = tree.roots as [Run, Run]
  expect(prefix).toMatchObject({ start: 0, blocks: [1, 2], tokens: 8, tokensSaved: 24 })
  expect(names(prefix.readers)).toEqual(['r0', 'r1', 'r2', 'r5'])
  expect(alone).toMatchObject({ blocks: [9, 8], tokensSaved: 0, children: [] })
  expect(prefix.children.map(({ blocks }) => blocks)).toEqual([[4], [3]])
  expect(prefix.children[0]!.children.map(({ blocks }) => blocks)).toEqual([[5], [6]])
  expect(prefixTree(picture([]), full).roots).toEqual([])
  expect(prefixTree(picture([[1], [1]]), full, ({ n }) => n === 1).tokensSaved).toBe(0)
})

test('rows of the drawing: those that end with a run have their names there', () => {
  const tree = prefixTree(picture([[1, 2, 3], [1, 2, 4], [1, 2]]), full)
  const { rows, height } = layOut(tree, new Set())
  expect(rows.map(({ run, y, ending }) => [run.blocks, y, names(ending)])).toEqual([
    [[1, 2], 0, ['r2']],
    [[3], 1, ['r0']],
    [[4], 2, ['r1']],
  ])
  expect(height).toBe(3)
  expect(rows[2]!.parent).toBe(rows[0])
})

test('500 readers are folded up, and unfolded where somebody asks', () => {
  const tables = Array.from({ length: 500 }, (_, n) => [n % 5, 10 + (n % 5), 100 + n])
  const tree = prefixTree(picture(tables), full)
  const folded = layOut(tree, new Set())
  expect(folded.rows.length).toBe(5 * (1 + 4 + 1))
  const rest = folded.rows.filter(({ kind }) => kind === 'rest')
  expect(rest.map(({ hidden }) => hidden.length)).toEqual([96, 96, 96, 96, 96])
  const opened = layOut(tree, new Set([tree.roots[0]!.key]))
  expect(opened.rows.length).toBe(5 * 6 - 1 + 96)
  const all = layOut(tree, new Set(tree.roots.map(({ key }) => key)))
  expect(all.rows.length).toBeLessThanOrEqual(400 + 6)
  const shown = all.rows.reduce(
    (sum, { kind, hidden, ending }) => sum + (kind === 'rest' ? hidden.length : ending.length),
    0,
  )
  expect(shown).toBeGreaterThan(300)
  const start = performance.now()
  for (let i = 0; i < 20; i++) layOut(prefixTree(picture(tables), full), new Set())
  expect(performance.now() - start).toBeLessThan(1000)
})

test('what is saved is what the pool saves, at every moment of a recording', () => {
  const { frames } = JSON.parse(
    readFileSync(new URL('recording.json', import.meta.url), 'utf8'),
  ) as { frames: Frame[] }
  const seen = new Picture(frames[0] as Snapshot)
  let most = 0
  for (const frame of frames.slice(1)) {
    seen.apply(frame as never)
    const meter = new UsageMeter()
    const { blocksSaved, blocksAllocated } = meter.measure(seen)
    const tree = prefixTree(seen, meter.filled)
    expect([tree.blocks, tree.entries - tree.blocks]).toEqual([blocksAllocated, blocksSaved])
    most = Math.max(most, tree.tokensSaved)
  }
  expect(most).toBeGreaterThan(20)
})
