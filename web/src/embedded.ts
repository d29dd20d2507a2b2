import type { Frame } from './feed/frames'
import type { EndedRow } from './feed/lanes'

/** A moment of a feed: a snapshot, and what came after it. */
export interface EmbeddedMoment {
  kind: 'moment'
  frames: Frame[]
  /** Who had ended before the first frame. */
  ended?: EndedRow[]
  /** As in the page's address: what is chosen, and where in time it begins. */
  state?: string
}

/** A guided scene: `lesson` is what the page of lessons reads. */
export interface EmbeddedLesson {
  kind: 'lesson'
  name: string
  lesson: unknown
  state?: string
}

export type Embedded = EmbeddedMoment | EmbeddedLesson

// As in web/one-file.ts, which makes a page with this in it.
const PLACE = '<script type="application/json" id="embedded">null</script>'

/** What an exported page carries; null in one that a server has. */
export function readEmbedded(root: ParentNode = document): Embedded | null {
  const text = root.querySelector('#embedded')?.textContent
  return text ? (JSON.parse(text) as Embedded | null) : null
}

/** The page in one file, `template`, with data in it: it opens from disk and needs nothing else. */
export function selfContained(template: string, embedded: Embedded): string {
  const at = template.indexOf(PLACE)
  if (at < 0) throw new Error('no place for data')
  // Nothing in JSON but strings has a "<", and no string needs one to end a script.
  const data = JSON.stringify(embedded).replace(/</g, '\\u003c')
  return (
    template.slice(0, at) + PLACE.replace('null', () => data) + template.slice(at + PLACE.length)
  )
}

/** Lets somebody keep a page as a file. */
export function download(name: string, content: string, type = 'text/html'): void {
  const url = URL.createObjectURL(new Blob([content], { type: `${type};charset=utf-8` }))
  const link = Object.assign(document.createElement('a'), { href: url, download: name })
  link.click()
  setTimeout(() => URL.revokeObjectURL(url), 60_000)
}
