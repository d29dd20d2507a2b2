import { LiveClock } from './feed/clock'
import { LiveFeed, readRecording, streamOf, type Sink, type Status } from './feed/source'
import { Timeline } from './feed/timeline'
import type { Frame } from './feed/frames'
import { dark, light, type Palette } from './draw/palette'
import { readEmbedded, selfContained, type Embedded } from './embedded'
import { Address, formatLink, parseLink, type Link } from './link'
import { preferredLanguage, words, type Language, type Word } from './i18n'

export type View = 'shelf' | 'readers' | 'sharing' | 'dials' | 'try' | 'compare' | 'lessons'
export const VIEWS: readonly View[] = [
  ...(['shelf', 'readers', 'sharing', 'dials', 'try', 'compare', 'lessons'] as const),
]

export type Theme = 'auto' | 'light' | 'dark'

/** Characters of frames in an exported page. */
const MAX_EXPORT = 48 << 20
/** Milliseconds in which what was has come, after it was asked for. */
const SOON = 5000

interface About {
  source: 'live' | 'recording' | 'exported'
  chats: boolean
  /** What arrivals two allocators can be compared on here; none where nobody would compute it. */
  compare?: readonly ('made-up' | 'recording')[]
  model: string
}

/** What the page is about, and what of it is chosen. */
export class Studio {
  timeline = $state.raw(new Timeline(new LiveClock(() => performance.now() / 1000)))
  /** Goes up with each moment that is shown. */
  version = $state(0)
  status = $state<Status>({ state: 'connecting' })
  about = $state<About>({ source: 'live', chats: false, model: '' })
  problem = $state<Word | null>(null)
  key = $state('')
  view = $state<View>('shelf')
  /** Where in the view, for one that has places. */
  place = $state('')
  language = $state<Language>('en')
  theme = $state<Theme>('auto')
  systemDark = $state(false)
  reader = $state<number | null>(null)
  block = $state<number | null>(null)
  /** Blocks that something outside the shelf points at. */
  marked = $state.raw<readonly number[]>([])
  query = $state('')
  /** What an exported page carries. */
  embedded = $state.raw<Embedded | null>(null)
  /** A request all of whose samples or beams are chosen: what their names begin with. */
  group = $state<string | null>(null)

  private feed: LiveFeed | null = null
  private readonly address = new Address(() => this.link())
  /** Of a link that was followed: where in time to go as soon as that is there. */
  private wanted: number | null = null
  private rest: [string, string][] = []
  private opened = 0
  private readonly sink: Sink = {
    frames: (frames) => this.take(frames),
    status: (status) => {
      this.status = status
      if (status.state !== 'live') this.timeline.clock?.stop()
    },
    alive: () => this.timeline.clock?.alive(),
  }

  constructor() {
    this.language = stored('language', ['en', 'zh']) ?? preferredLanguage(navigator.languages)
    this.theme = stored('theme', ['auto', 'light', 'dark']) ?? 'auto'
    this.key = kept(() => sessionStorage.getItem('looseleaf-key')) ?? ''
    const media = matchMedia('(prefers-color-scheme: dark)')
    this.systemDark = media.matches
    media.addEventListener('change', () => {
      this.systemDark = media.matches
    })
    this.follow(location.hash)
    // Not where the address is now: what the page shows may have been written to it since.
    addEventListener('hashchange', (event) => this.follow(new URL(event.newURL).hash))
    this.timeline.listen({ moved: () => this.version++ })
    $effect.root(() => {
      $effect(() => {
        void [this.version, this.view, this.place, this.reader, this.block, this.query, this.language]
        this.address.changed()
      })
    })
  }

  get dark(): boolean {
    return this.theme === 'dark' || (this.theme === 'auto' && this.systemDark)
  }

  get palette(): Palette {
    return this.dark ? dark : light
  }

  say(word: Word): string {
    return words[this.language][word]
  }

  number(value: number, digits = 0): string {
    return value.toLocaleString(this.language === 'zh' ? 'zh-CN' : 'en', {
      maximumFractionDigits: digits,
      minimumFractionDigits: digits,
    })
  }

  percent(value: number): string {
    return `${this.number(100 * value, 1)}%`
  }

  bytes(value: number): string {
    const units = ['B', 'KiB', 'MiB', 'GiB']
    let i = 0
    while (value >= 1024 && i < units.length - 1) {
      value /= 1024
      i++
    }
    return `${this.number(value, value < 10 && i > 0 ? 1 : 0)} ${units[i]}`
  }

  duration(seconds: number): string {
    if (seconds < 1) return `${this.number(1000 * seconds)} ms`
    return `${this.number(seconds, seconds < 10 ? 1 : 0)} s`
  }

  async start(): Promise<void> {
    this.embedded = readEmbedded()
    if (this.embedded) {
      this.present(this.embedded)
      return
    }
    try {
      const answer = await fetch('about', {
        headers: this.key ? { authorization: `Bearer ${this.key}` } : {},
      })
      if (answer.status === 401) {
        this.status = { state: 'key' }
        return
      }
      this.about = (await answer.json()) as About
    } catch {
      // The page was opened from somewhere else: a recording can be chosen all the same.
      this.status = { state: 'lost', why: '' }
      return
    }
    if (this.about.source === 'recording') await this.play(fetch('recording').then((a) => a.body!))
    else this.connect()
  }

  /** With the key that was typed in. */
  async unlock(): Promise<void> {
    kept(() => sessionStorage.setItem('looseleaf-key', this.key))
    await this.start()
  }

  connect(): void {
    this.feed?.close()
    this.opened = performance.now()
    if (this.wanted !== null) setTimeout(() => this.wanted !== null && this.arrive(this.wanted), SOON)
    this.feed = new LiveFeed(this.wanted === null ? 'feed' : 'feed?past', this.key, this.sink)
  }

  /** What a link to this page says. */
  link(): Link {
    const { timeline } = this
    const time = timeline.following || timeline.empty ? null : timeline.time
    return {
      view: this.view,
      place: this.place,
      t: this.wanted ?? (time === null ? null : time - (timeline.whole ? timeline.start : 0)),
      reader: this.reader,
      block: this.block,
      query: this.query,
      language: this.language,
      rest: this.rest,
    }
  }

  /** Whether somebody who opens the link sees the same: not if the file was chosen in here. */
  get linkable(): boolean {
    return this.about.source === 'recording' || this.status.state === 'live'
  }

  /** The page in one file, with the moment that is shown and so many seconds before it. */
  async exported(seconds: number): Promise<string> {
    const template = await this.template()
    const excerpt = this.timeline.excerpt(seconds, MAX_EXPORT)
    const t = this.timeline.time - excerpt.frames[0]!.time
    const state = formatLink({ ...this.link(), t: Math.max(0, t) })
    return selfContained(template, { kind: 'moment', ...excerpt, state })
  }

  /** The page in one file, with a lesson that `lesson` is the data of. */
  async exportedLesson(name: string, lesson: unknown): Promise<string> {
    const state = `#lessons/${name}&lang=${this.language}`
    return selfContained(await this.template(), { kind: 'lesson', name, lesson, state })
  }

  private async template(): Promise<string> {
    const answer = await fetch('template', {
      headers: this.key ? { authorization: `Bearer ${this.key}` } : {},
    })
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`)
    return await answer.text()
  }

  async open(file: File): Promise<void> {
    this.feed?.close()
    this.feed = null
    this.wanted = null
    this.choose(null)
    await this.play(Promise.resolve(streamOf(file)))
  }

  choose(reader: number | null, block: number | null = null): void {
    this.reader = reader
    this.block = block
  }

  isOfGroup(id: string): boolean {
    return this.group !== null && id.startsWith(`${this.group}/`)
  }

  /** Of a reader of the chosen request. */
  colorOf(id: string): string | undefined {
    if (!this.isOfGroup(id)) return undefined
    return this.colorOfIndex(Number(/\d+$/.exec(id)?.[0] ?? 0))
  }

  /** Of a sample, by its index; they come round. */
  colorOfIndex(index: number): string {
    const { lines } = this.palette
    return lines[index % lines.length]!
  }

  setLanguage(language: Language): void {
    this.language = language
    kept(() => localStorage.setItem('looseleaf-language', language))
  }

  setTheme(theme: Theme): void {
    this.theme = theme
    kept(() => localStorage.setItem('looseleaf-theme', theme))
  }

  private async play(body: Promise<ReadableStream<Uint8Array>>): Promise<void> {
    this.problem = null
    this.begin()
    try {
      await readRecording(await body, this.sink)
      this.goThere()
    } catch {
      this.problem = 'badRecording'
    }
    this.version++
  }

  /** A timeline of what is there as a whole. */
  private begin(): Timeline {
    const timeline = new Timeline()
    timeline.listen({ moved: () => this.version++ })
    timeline.whole = true
    timeline.following = false
    timeline.playing = false
    this.timeline = timeline
    return timeline
  }

  /** To the moment of the link that was followed, or to the end of what is there as a whole. */
  private goThere(): void {
    const { timeline, wanted } = this
    this.wanted = null
    timeline.seek(wanted === null ? timeline.end : timeline.start + wanted)
  }

  private present(embedded: Embedded): void {
    this.about = { source: 'exported', chats: false, model: '' }
    this.status = { state: 'exported' }
    if (location.hash.length < 2) this.follow(embedded.state ?? '')
    if (embedded.kind !== 'moment') return
    const timeline = this.begin()
    timeline.lanes.restore(embedded.ended ?? [])
    timeline.push(embedded.frames)
    this.goThere()
  }

  /** Where in time a link leads, once the feed has told what was. */
  private arrive(wanted: number): void {
    const { timeline } = this
    const soon = performance.now() - this.opened < SOON
    if (wanted > timeline.end && soon) return
    this.wanted = null
    if (wanted < timeline.start || wanted > timeline.end) this.problem = 'gone'
    else timeline.seek(wanted)
    timeline.playing = timeline.following
  }

  private take(frames: Frame[]): void {
    if (!this.timeline.push(frames)) {
      this.connect()
      return
    }
    if (this.wanted !== null && !this.timeline.whole) this.arrive(this.wanted)
  }

  /** A link, or no more than the name of a view: then all else stays as it is. */
  private follow(hash: string): void {
    const link = parseLink(hash)
    if (VIEWS.includes(link.view as View)) this.view = link.view as View
    this.place = link.place
    if (!hash.includes('&')) {
      this.address.changed()
      return
    }
    this.choose(link.reader, link.block)
    this.query = link.query
    this.rest = link.rest
    if (link.language) this.language = link.language
    this.wanted = link.t
    if (link.t === null || this.timeline.empty) return
    if (this.timeline.whole) this.goThere()
    else this.arrive(link.t)
  }
}

function stored<T extends string>(name: string, values: readonly T[]): T | null {
  const value = kept(() => localStorage.getItem(`looseleaf-${name}`)) as T
  return values.includes(value) ? value : null
}

/** A browser may keep nothing for a page from disk. */
function kept<T>(action: () => T): T | null {
  try {
    return action()
  } catch {
    return null
  }
}

export const studio = new Studio()
