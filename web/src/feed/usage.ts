import type { Picture } from './picture'

/** Where the slots of the pool are, as src/looseleaf/engine/usage.py counts them. */
export interface Usage {
  total: number
  stored: number
  reserved: number
  internal: number
  external: number
  sequenceTokens: number
  blocksAllocated: number
  blocksSaved: number
  physical: number
  pool: number
  effective: number
  waste: number
}

export interface Tally {
  free: number
  cached: number
  held: number
  shared: number
  running: number
  waiting: number
  heldBack: number
}

/** Counts into arrays that it keeps, so that ten times a second of it cost little. */
export class UsageMeter {
  /** Of each block: how many tokens of it are stored. */
  filled = new Uint16Array(0)
  private final = new Uint16Array(0)

  measure(picture: Picture): Usage {
    const size = picture.blockSize
    if (this.filled.length !== picture.numBlocks) {
      this.filled = new Uint16Array(picture.numBlocks)
      this.final = new Uint16Array(picture.numBlocks)
    }
    this.filled.fill(0)
    this.final.fill(0)
    let entries = 0
    let lengths = 0
    let external = 0
    let allocated = 0
    for (const reader of picture.readers.values()) {
      const { table } = reader
      if (table.length === 0) continue
      const stored = Math.min(reader.computed, table.length * size)
      const last = Math.max(stored, reader.limit - 1)
      lengths += stored
      entries += table.length
      for (let i = 0; i < table.length; i++) {
        const id = table[i]!
        const here = Math.min(size, Math.max(0, stored - i * size))
        const ever = Math.min(size, Math.max(0, last - i * size))
        // A block that no token is to be stored in is held all the same: one more than all.
        if (this.final[id] === 0) allocated++
        if (here > this.filled[id]!) this.filled[id] = here
        if (ever + 1 > this.final[id]!) this.final[id] = ever + 1
      }
      external += Math.max(0, reader.region - table.length) * size * Number(reader.region > 0)
    }
    let storedSlots = 0
    let finalSlots = 0
    for (let id = 0; id < picture.numBlocks; id++) {
      storedSlots += this.filled[id]!
      if (this.final[id]! > 0) finalSlots += this.final[id]! - 1
    }
    const total = picture.numBlocks * size
    const slots = allocated * size + external
    const internal = allocated * size - finalSlots
    return {
      total,
      stored: storedSlots,
      reserved: finalSlots - storedSlots,
      internal,
      external,
      sequenceTokens: lengths,
      blocksAllocated: allocated,
      blocksSaved: entries - allocated,
      physical: slots ? storedSlots / slots : 0,
      pool: total ? storedSlots / total : 0,
      effective: slots ? lengths / slots : 0,
      waste: slots ? (internal + external) / slots : 0,
    }
  }
}

export function tally(picture: Picture): Tally {
  const result = { free: 0, cached: 0, held: 0, shared: 0, running: 0, waiting: 0, heldBack: 0 }
  for (let id = 0; id < picture.numBlocks; id++) {
    const refs = picture.refs[id]!
    if (refs > 1) result.shared++
    if (refs > 0) result.held++
    else if (picture.hashes[id] === undefined) result.free++
    else result.cached++
  }
  for (const reader of picture.readers.values()) {
    if (reader.status === 'running') result.running++
    else if (reader.status === 'held') result.heldBack++
    else result.waiting++
  }
  return result
}
