import type { Counters, Delta, RequestNews, Snapshot, Tiers } from './frames'

/** A request that has not ended. */
export interface Reader {
  n: number
  id: string
  status: string
  prompt: number
  tokens: number
  computed: number
  cached: number | null
  preemptions: number
  limit: number
  arrival: number
  first: number | null
  kept: number
  region: number
  table: number[]
}

export interface Owner {
  reader: Reader
  index: number
}

/** What a viewer sees: a snapshot, and the deltas after it. Blocks are by id, in columns. */
export class Picture {
  seq = 0
  time = 0
  /** Seconds from 1970 to the feed's time 0. */
  epoch = 0
  model = ''
  blockSize = 1
  blockBytes = 0
  numBlocks = 0
  refs = new Uint16Array(0)
  pins = new Uint8Array(0)
  /** Under how many tokens a block can be found. */
  found = new Uint16Array(0)
  /** Where else its content is: 0 nowhere, 1 in memory, 2 on disk. */
  kept = new Uint8Array(0)
  hashes: (string | undefined)[] = []
  texts: (string | undefined)[] = []
  /** Since when a block is as it is. */
  since = new Float64Array(0)
  readers = new Map<number, Reader>()
  counters!: Counters
  tiers: Tiers | null = null

  constructor(start?: Snapshot) {
    if (start) this.begin(start)
  }

  begin(frame: Snapshot): void {
    this.seq = frame.seq
    this.time = frame.time
    this.epoch = frame.wall_time - frame.time
    this.model = frame.model
    this.blockSize = frame.block_size
    this.blockBytes = frame.block_bytes
    this.numBlocks = frame.num_blocks
    this.refs = new Uint16Array(frame.num_blocks)
    this.pins = new Uint8Array(frame.num_blocks)
    this.found = new Uint16Array(frame.num_blocks)
    this.kept = new Uint8Array(frame.num_blocks)
    this.hashes = new Array(frame.num_blocks)
    this.texts = new Array(frame.num_blocks)
    this.since = new Float64Array(frame.num_blocks).fill(frame.time)
    this.readers = new Map()
    this.counters = frame.counters
    this.tiers = frame.tiers
    this.setBlocks(frame)
    for (const news of frame.requests) this.update(news)
    for (const [n, , blocks] of frame.tables) this.reader(n).table = [...blocks]
  }

  /** Returns whether the delta follows; if not, nothing is changed. */
  apply(delta: Delta): boolean {
    if (delta.seq !== this.seq + 1) return false
    this.seq = delta.seq
    this.time = delta.time
    this.setBlocks(delta)
    for (const [n, start, blocks] of delta.tables ?? []) {
      const { table } = this.reader(n)
      table.length = start
      for (const id of blocks) table.push(id)
    }
    for (const news of delta.requests ?? []) this.update(news)
    if (delta.counters) this.counters = delta.counters
    if (delta.tiers) this.tiers = delta.tiers
    return true
  }

  copy(): Picture {
    const other = Object.assign(new Picture(), this)
    other.refs = this.refs.slice()
    other.pins = this.pins.slice()
    other.found = this.found.slice()
    other.kept = this.kept.slice()
    other.since = this.since.slice()
    other.hashes = this.hashes.slice()
    other.texts = this.texts.slice()
    other.readers = new Map()
    for (const [n, reader] of this.readers) {
      other.readers.set(n, { ...reader, table: [...reader.table] })
    }
    return other
  }

  /** Who has the block in a table, and where. */
  owners(block: number): Owner[] {
    if (!this.refs[block]) return []
    const found: Owner[] = []
    for (const reader of this.readers.values()) {
      const index = reader.table.indexOf(block)
      if (index >= 0) found.push({ reader, index })
    }
    return found
  }

  private setBlocks(frame: Snapshot | Delta): void {
    for (const [id, refs = 0, pins = 0, found = 0, hash, text, kept = 0] of frame.blocks ?? []) {
      this.refs[id] = refs
      this.pins[id] = pins
      this.found[id] = found
      this.kept[id] = kept
      this.hashes[id] = hash ?? undefined
      this.texts[id] = text ?? undefined
      this.since[id] = frame.time
    }
  }

  private update(news: RequestNews): void {
    const reader = Object.assign(this.reader(news.n), news)
    if (reader.status === 'finished') this.readers.delete(news.n)
  }

  private reader(n: number): Reader {
    let reader = this.readers.get(n)
    if (!reader) {
      reader = {
        n,
        id: '',
        status: 'waiting',
        prompt: 0,
        tokens: 0,
        computed: 0,
        cached: null,
        preemptions: 0,
        limit: 0,
        arrival: 0,
        first: null,
        kept: 0,
        region: 0,
        table: [],
      }
      this.readers.set(n, reader)
    }
    return reader
  }
}

export type BlockState = 'free' | 'cached' | 'held' | 'shared'

export function stateOf(picture: Picture, block: number): BlockState {
  const refs = picture.refs[block] ?? 0
  if (refs > 1) return 'shared'
  if (refs === 1) return 'held'
  return picture.hashes[block] === undefined ? 'free' : 'cached'
}
