// The frames of the feed, as src/looseleaf/studio/frames.py has them. All times are seconds.

export type BlockRow = [
  id: number,
  refCount?: number,
  pins?: number,
  tokens?: number,
  hash?: string | null,
  text?: string | null,
  /** Where else its content is: 0 nowhere, 1 in memory, 2 on disk. */
  kept?: number,
]

export interface RequestNews {
  n: number
  id?: string
  status?: 'waiting' | 'held' | 'running' | 'finished'
  prompt?: number
  tokens?: number
  computed?: number
  cached?: number | null
  preemptions?: number
  limit?: number
  priority?: number
  arrival?: number
  first?: number | null
  kept?: number
  region?: number
  reason?: string
}

export type TableRow = [n: number, start: number, blocks: number[]]
export type MoveRow = [time: number, n: number, status: string, cause: string]
export type PartRow = [n: number, tokens: number, drafts: number, samples: number]
export type StepRow = [id: number, count: number, start: number, end: number, parts: PartRow[]]
export type CopyRow = [n: number, source: number, destination: number]

export interface Counters {
  steps: number
  computed_tokens: number
  output_tokens: number
  prefix_queries: number
  prefix_hits: number
  preemptions: number
  held_back: number
  copies: number
  /** Prompt tokens that were not found stored, by reason. */
  misses?: Record<string, number>
}

export interface Tiers {
  host_blocks: number
  host_bytes: number
  disk_bytes: number
  saved: number
  loaded_from_host: number
  loaded_from_disk: number
}

export interface Snapshot {
  kind: 'snapshot'
  format: number
  seq: number
  time: number
  wall_time: number
  model: string
  block_size: number
  num_blocks: number
  block_bytes: number
  blocks: BlockRow[]
  requests: RequestNews[]
  tables: TableRow[]
  counters: Counters
  tiers: Tiers | null
}

export interface Delta {
  kind: 'delta'
  seq: number
  time: number
  blocks?: BlockRow[]
  requests?: RequestNews[]
  tables?: TableRow[]
  moves?: MoveRow[]
  steps?: StepRow[]
  copies?: CopyRow[]
  evicted?: number[]
  counters?: Counters | null
  tiers?: Tiers | null
}

export type Frame = Snapshot | Delta

export const FORMAT = 1
