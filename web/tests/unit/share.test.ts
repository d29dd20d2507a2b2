import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { selfContained } from '../../src/embedded'
import { snapshotOf } from '../../src/feed/excerpt'
import type { Delta, Frame, Snapshot } from '../../src/feed/frames'
import { Picture } from '../../src/feed/picture'
import { latencies } from '../../src/feed/series'
import { search } from '../../src/feed/search'
import { Timeline } from '../../src/feed/timeline'
import { UsageMeter } from '../../src/feed/usage'
import { formatLink, parseLink } from '../../src/link'
import { PLACE } from '../../one-file'

const { frames } = JSON.parse(
  readFileSync(new URL('recording.json', import.meta.url), 'utf8'),
) as { frames: Frame[] }

test('a link says what it was made of', () => {
  const link = {
    view: 'shelf',
    place: 'top',
    t: 12.3,
    reader: 5,
    block: 17,
    query: 'a & b=猫',
    language: 'zh' as const,
    rest: [['step', '3']] as [string, string][],
  }
  const hash = formatLink(link)
  expect(hash).toBe('#shelf/top&t=12.3&reader=5&block=17&q=a%20%26%20b%3D%E7%8C%AB&lang=zh&step=3')
  expect(parseLink(hash)).toEqual(link)
  expect(formatLink(parseLink('#dials'))).toBe('#dials')
  // The frame of just then is in it.
  expect(parseLink(formatLink({ ...link, t: 62651.0001 })).t).toBe(62651.001)
})

test('what is no link is taken for what can be made of it', () => {
  expect(parseLink('')).toMatchObject({ view: '', t: null, reader: null, language: null })
  expect(parseLink('#x&t=NaN&reader=-1&block=1.5&lang=fr&t')).toMatchObject({
    t: null,
    reader: null,
    block: null,
    language: null,
  })
})

test('data in a page cannot end its element, nor be taken for a pattern', () => {
  const template = `<body>${PLACE}<script>1</script></body>`
  const name = "</script><!--<script> $& $' $1"
  const page = selfContained(template, { kind: 'lesson', name, lesson: null })
  expect(page.match(/<\/script>/g)).toHaveLength(2)
  expect(page).not.toContain('<!--')
  const data = page.match(/id="embedded">(.*?)<\/script>/)![1]!
  expect(JSON.parse(data)).toEqual({ kind: 'lesson', name, lesson: null })
  expect(() => selfContained('<body></body>', { kind: 'moment', frames: [] })).toThrow()
})

function state(picture: Picture): object {
  // Since when blocks are as they are is known from the first frame on.
  const { epoch, ...rest } = picture
  return { ...rest, epoch: epoch.toFixed(6), since: null, readers: [...picture.readers.values()] }
}

test('an excerpt shows the same moment, and goes back as far as it was asked to', () => {
  const whole = new Timeline()
  whole.push(frames)
  for (const seconds of [0, 0.5, 2, Infinity]) {
    for (const share of [0.3, 0.7, 1]) {
      whole.seek(whole.start + share * (whole.end - whole.start))
      const { frames: some, ended } = JSON.parse(JSON.stringify(whole.excerpt(seconds, 1e9)))
      const other = new Timeline()
      other.whole = true
      other.lanes.restore(ended)
      expect(other.push(some)).toBe(true)
      other.seek(whole.time)
      expect(state(other.moment.picture)).toEqual(state(whole.moment.picture))
      expect(other.moment.usage).toEqual(new UsageMeter().measure(whole.moment.picture))
      expect(latencies(other.lanes.all, whole.time)).toEqual(
        latencies(whole.lanes.all, whole.time),
      )
      const from = Math.max(whole.start, whole.time - seconds)
      expect(other.start).toBeLessThanOrEqual(from)
      if (seconds < Infinity) expect(other.start).toBeGreaterThan(from - 0.5)
    }
  }
  expect(whole.excerpt(Infinity, 1000).frames.length).toBeLessThan(20)
})

test('a picture tells itself as a snapshot', () => {
  const picture = new Picture(frames[0] as Snapshot)
  for (const frame of frames.slice(1)) picture.apply(frame as Delta)
  expect(state(new Picture(snapshotOf(picture)))).toEqual(state(picture))
})

test('text is found across blocks, and once where it is shared', () => {
  const picture = new Picture(frames[0] as Snapshot)
  picture.numBlocks = 6
  picture.texts = ['The lib', 'rary is', ' open', undefined, 'a library', 'The lib']
  picture.hashes = ['aa11', 'bb22', 'cc33', undefined, 'dd44', 'ee55']
  picture.readers.clear()
  const reader = (n: number, table: number[]) =>
    picture.readers.set(n, { n, id: `chat-${n}`, table } as never)
  reader(1, [0, 1, 2])
  reader(2, [0, 1])
  reader(3, [5, 3, 2])
  const found = search(picture, ' LIBRARY is')
  expect(found.hits).toMatchObject([
    { kind: 'text', reader: 1, blocks: [0, 1], before: 'The ', match: 'library is', after: ' open' },
  ])
  expect(search(picture, 'lib').hits.map(({ blocks }) => blocks)).toEqual([[0], [5], [4]])
  expect(search(picture, 'lib open').count).toBe(0)
  expect([...search(picture, 'chat-3').blocks]).toEqual([5, 3, 2])
  expect(search(picture, 'dd44').hits).toMatchObject([{ kind: 'hash', blocks: [4] }])
  expect(search(picture, '  ').count).toBe(0)
})
