import type { Pool } from './data'

/** Where the blocks of a small pool are drawn. All sizes are pixels. */
export interface Layout {
  width: number
  height: number
  /** Of a slot; and how many of them a block has in a row. */
  slot: number
  columns: number
  blockWidth: number
  blockHeight: number
  /** Above each block, for its number; 0 where there are too many. */
  label: number
  at(block: number): [x: number, y: number]
  /** The middle of its lower edge. */
  foot(block: number): [x: number, y: number]
}

const MOST_LABELLED = 64
const LABEL = 15

export function layoutOf({ block_size, num_blocks, copies }: Pool, available: number): Layout {
  const label = num_blocks <= MOST_LABELLED ? LABEL : 0
  const columns = Math.min(block_size, 16)
  const lines = Math.ceil(block_size / columns)
  const slots = block_size * num_blocks
  const wanted = slots > 256 ? 10 : slots > 128 ? 16 : 19
  // A block never sticks out of a narrow page.
  const slot = Math.max(4, Math.min(wanted, Math.floor((available - 2) / columns)))
  const blockWidth = columns * slot
  const blockHeight = lines * slot
  const gap = label ? 8 : 3
  const fit = Math.max(1, Math.min(num_blocks, Math.floor((available + gap) / (blockWidth + gap))))
  const across = evenly(num_blocks, fit)
  const down = Math.ceil(num_blocks / across)
  // Copies are drawn below the blocks.
  const below = copies?.length ? 20 : label ? 6 : gap
  const pitch = blockHeight + label + below
  function at(block: number): [number, number] {
    return [(block % across) * (blockWidth + gap), Math.floor(block / across) * pitch]
  }
  return {
    width: across * (blockWidth + gap) - gap,
    height: down * pitch,
    slot,
    columns,
    blockWidth,
    blockHeight,
    label,
    at,
    foot(block) {
      const [x, y] = at(block)
      return [x + blockWidth / 2, y + label + blockHeight]
    },
  }
}

/** So many in a row that all rows are full, if that leaves no more than half of a row unused. */
function evenly(total: number, fit: number): number {
  for (let across = fit; across > fit / 2; across--) if (total % across === 0) return across
  return fit
}
