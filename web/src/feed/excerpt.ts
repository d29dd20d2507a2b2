import type { BlockRow, Frame, RequestNews, Snapshot, TableRow } from './frames'
import { FORMAT } from './frames'
import type { Picture } from './picture'

/** What a snapshot would say that was taken at this frame. */
export function snapshotOf(picture: Picture): Snapshot {
  const blocks: BlockRow[] = []
  for (let id = 0; id < picture.numBlocks; id++) {
    const hash = picture.hashes[id] ?? null
    if (picture.refs[id] === 0 && hash === null) continue
    blocks.push([
      id,
      picture.refs[id]!,
      picture.pins[id]!,
      picture.found[id]!,
      hash,
      picture.texts[id] ?? null,
      picture.kept[id]!,
    ])
  }
  const requests: RequestNews[] = []
  const tables: TableRow[] = []
  for (const { table, ...reader } of picture.readers.values()) {
    requests.push(reader as RequestNews)
    if (table.length) tables.push([reader.n, 0, [...table]])
  }
  return {
    kind: 'snapshot',
    format: FORMAT,
    seq: picture.seq,
    time: picture.time,
    wall_time: picture.epoch + picture.time,
    model: picture.model,
    block_size: picture.blockSize,
    num_blocks: picture.numBlocks,
    block_bytes: picture.blockBytes,
    blocks,
    requests,
    tables,
    counters: picture.counters,
    tiers: picture.tiers,
  }
}

/** From which index on frames take no more than so many characters of JSON. */
export function newestWithin(frames: readonly Frame[], most: number): number {
  let size = 0
  let index = frames.length
  while (index > 0) {
    size += JSON.stringify(frames[index - 1]).length
    if (size > most) break
    index--
  }
  return index
}
