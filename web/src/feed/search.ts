import type { Picture } from './picture'

/** A request whose name was found, or a stretch of text, or a hash. */
export interface Hit {
  kind: 'request' | 'text' | 'hash'
  /** In whose table the blocks are; null for those that only the cache has. */
  reader: number | null
  /** Of that reader. */
  id: string
  blocks: number[]
  /** What is around the text that was found. */
  before: string
  match: string
  after: string
}

export interface Found {
  hits: Hit[]
  /** Of all of them. */
  blocks: Set<number>
  /** Also those that are not among `hits`. */
  count: number
}

const MOST = 200
const AROUND = 24
const LEAST_HASH = 4

/** Where `query` is. Text is found across blocks, and once where several requests share it. */
export function search(picture: Picture, query: string): Found {
  const found: Found = { hits: [], blocks: new Set(), count: 0 }
  const wanted = query.trim().toLowerCase()
  if (!wanted) return found
  const add = (hit: Hit): void => {
    found.count++
    for (const block of hit.blocks) found.blocks.add(block)
    if (found.hits.length < MOST) found.hits.push(hit)
  }
  const none = { before: '', match: '', after: '' }
  for (const { n, id, table } of picture.readers.values()) {
    if (id.toLowerCase().includes(wanted)) {
      add({ kind: 'request', reader: n, id, blocks: [...table], ...none })
    }
  }
  const seen = new Set<string>()
  const searched = new Set<number>()
  const look = (blocks: readonly number[], reader: number | null, id: string): void => {
    // What is not told is between what is.
    const texts = blocks.map((block) => picture.texts[block] ?? '\0')
    const whole = texts.join('')
    const lower = whole.toLowerCase()
    for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, at + 1)) {
      const end = at + wanted.length
      const within: number[] = []
      let start = 0
      let first = 0
      for (let i = 0; i < texts.length && start < end; i++) {
        const next = start + texts[i]!.length
        if (next > at && start < end) {
          if (within.length === 0) first = at - start
          within.push(blocks[i]!)
        }
        start = next
      }
      const key = `${first}:${within.join()}`
      if (seen.has(key)) continue
      seen.add(key)
      add({
        kind: 'text',
        reader,
        id,
        blocks: within,
        before: whole.slice(Math.max(0, at - AROUND), at),
        match: whole.slice(at, end),
        after: whole.slice(end, end + AROUND),
      })
    }
  }
  for (const { n, id, table } of picture.readers.values()) {
    for (const block of table) searched.add(block)
    look(table, n, id)
  }
  for (let block = 0; block < picture.numBlocks; block++) {
    if (picture.texts[block] && !searched.has(block)) look([block], null, '')
    if (wanted.length >= LEAST_HASH && picture.hashes[block]?.startsWith(wanted)) {
      add({ kind: 'hash', reader: null, id: '', blocks: [block], ...none })
    }
  }
  return found
}
