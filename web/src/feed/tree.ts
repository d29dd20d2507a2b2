import type { Picture, Reader } from './picture'

/** A run of blocks that the same readers have in their tables, one after the other. */
export interface Run {
  /** Names it, as long as the readers are the same: the first of them, and where it begins. */
  key: string
  /** Of its first block in the tables. */
  start: number
  blocks: readonly number[]
  /** Of one copy of it. */
  tokens: number
  /** Tokens that would be stored once more for each further reader. */
  tokensSaved: number
  readers: readonly Reader[]
  /** What comes after it; none, if one reader alone has it. */
  children: Run[]
}

export interface Tree {
  /** Runs that begin the tables. */
  roots: Run[]
  readers: number
  /** Entries of all tables, and the blocks that they name. */
  entries: number
  blocks: number
  tokensSaved: number
  /** Entries of the longest table. */
  length: number
}

/** The block tables as a prefix tree, for `filled` tokens in each block. Runs shared by more come
 * first. Takes as long as the tables have shared entries. */
export function prefixTree(
  picture: Picture,
  filled: ArrayLike<number>,
  among: (reader: Reader) => boolean = () => true,
): Tree {
  const readers = [...picture.readers.values()].filter(
    (reader) => reader.table.length > 0 && among(reader),
  )
  const tree: Tree = {
    roots: [],
    readers: readers.length,
    entries: 0,
    blocks: 0,
    tokensSaved: 0,
    length: 0,
  }
  for (const { table } of readers) {
    tree.entries += table.length
    tree.length = Math.max(tree.length, table.length)
  }
  tree.roots = runsOf(readers, 0, filled, tree)
  return tree
}

function runsOf(readers: Reader[], start: number, filled: ArrayLike<number>, tree: Tree): Run[] {
  const byBlock = new Map<number, Reader[]>()
  for (const reader of readers) {
    const block = reader.table[start]
    if (block === undefined) continue // it has no more than what it shares
    const others = byBlock.get(block)
    if (others) others.push(reader)
    else byBlock.set(block, [reader])
  }
  const runs = [...byBlock.values()].map((group) => runOf(group, start, filled, tree))
  return runs.sort((a, b) => b.readers.length - a.readers.length || a.readers[0]!.n - b.readers[0]!.n)
}

function runOf(readers: Reader[], start: number, filled: ArrayLike<number>, tree: Tree): Run {
  const { table, n } = readers[0]!
  let end = start + 1
  while (end < table.length && readers.every((reader) => reader.table[end] === table[end])) end++
  const blocks = table.slice(start, end)
  let tokens = 0
  for (const block of blocks) tokens += filled[block] ?? 0
  tree.blocks += blocks.length
  tree.tokensSaved += tokens * (readers.length - 1)
  return {
    key: `${n}/${start}/${readers.length > 1 ? 's' : ''}`,
    start,
    blocks,
    tokens,
    tokensSaved: tokens * (readers.length - 1),
    readers,
    children: readers.length > 1 ? runsOf(readers, end, filled, tree) : [],
  }
}

/** A line of the drawn tree: a run, a reader that ends there, or several that are not drawn. */
export interface Row {
  kind: 'run' | 'rest'
  run: Run
  /** In rows; of a run that others hang on, the middle of theirs. */
  y: number
  /** Key of the run that it hangs on. */
  parent: Row | null
  /** Of a `rest`: the runs that it stands for. */
  hidden: readonly Run[]
  /** Readers who end with this run, but for those who go on. */
  ending: readonly Reader[]
}

export interface Layout {
  rows: Row[]
  height: number
}

/** Rows for the tree. A run shows so many of those that one reader has alone; `open` has the keys of
 * the runs (or '' for the roots) that show all. */
export function layOut(tree: Tree, open: ReadonlySet<string>, most = 4, limit = 400): Layout {
  const layout: Layout = { rows: [], height: 0 }

  const place = (runs: readonly Run[], parent: Row | null, key: string): number[] => {
    const shared = runs.filter((run) => run.readers.length > 1)
    const alone = runs.filter((run) => run.readers.length === 1)
    const all = open.has(key) || alone.length <= most + 1
    const shown = [...shared, ...(all ? alone : alone.slice(0, most))]
    const heights: number[] = []
    let count = 0
    for (const run of shown) {
      if (layout.rows.length >= limit) break
      heights.push(placeRun(run, parent))
      count++
    }
    const hidden = [...shown.slice(count), ...(all ? [] : alone.slice(most))]
    if (hidden.length) {
      const y = layout.height++
      layout.rows.push({ kind: 'rest', run: hidden[0]!, y, parent, hidden, ending: [] })
      heights.push(y)
    }
    return heights
  }

  const placeRun = (run: Run, parent: Row | null): number => {
    const goOn = new Set(run.children.flatMap((child) => child.readers))
    const ending = run.readers.filter((reader) => !goOn.has(reader))
    const row: Row = { kind: 'run', run, y: 0, parent, hidden: [], ending }
    layout.rows.push(row)
    // Whoever ends with the run has its name there, so that it needs a line of its own.
    if (ending.length) row.y = layout.height++
    const heights = place(run.children, row, run.key)
    if (!ending.length) row.y = (heights[0]! + heights.at(-1)!) / 2
    return row.y
  }

  place(tree.roots, null, '')
  return layout
}
