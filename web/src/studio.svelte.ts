import { LiveClock } from './feed/clock'
import { LiveFeed, readRecording, streamOf, type Sink, type Status } from './feed/source'
import { Timeline } from './feed/timeline'
import type { Frame } from './feed/frames'
import { dark, light, type Palette } from './draw/palette'
import { preferredLanguage, words, type Language, type Word } from './i18n'

export type View = 'shelf' | 'readers' | 'sharing' | 'dials' | 'try' | 'compare'
export const VIEWS: readonly View[] = ['shelf', 'readers', 'sharing', 'dials', 'try', 'compare']

export type Theme = 'auto' | 'light' | 'dark'

interface About {
  source: 'live' | 'recording'
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
  language = $state<Language>('en')
  theme = $state<Theme>('auto')
  systemDark = $state(false)
  reader = $state<number | null>(null)
  block = $state<number | null>(null)
  /** Blocks that something outside the shelf points at. */
  marked = $state.raw<readonly number[]>([])
  query = $state('')
  /** A request all of whose samples or beams are chosen: what their names begin with. */
  group = $state<string | null>(null)

  private feed: LiveFeed | null = null
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
    this.key = sessionStorage.getItem('looseleaf-key') ?? ''
    const media = matchMedia('(prefers-color-scheme: dark)')
    this.systemDark = media.matches
    media.addEventListener('change', () => {
      this.systemDark = media.matches
    })
    this.readHash()
    addEventListener('hashchange', () => this.readHash())
    this.timeline.listen({ moved: () => this.version++ })
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
    sessionStorage.setItem('looseleaf-key', this.key)
    await this.start()
  }

  connect(): void {
    this.feed?.close()
    this.feed = new LiveFeed('feed', this.key, this.sink)
  }

  async open(file: File): Promise<void> {
    this.feed?.close()
    this.feed = null
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
    localStorage.setItem('looseleaf-language', language)
  }

  setTheme(theme: Theme): void {
    this.theme = theme
    localStorage.setItem('looseleaf-theme', theme)
  }

  private async play(body: Promise<ReadableStream<Uint8Array>>): Promise<void> {
    this.problem = null
    const timeline = new Timeline()
    timeline.listen({ moved: () => this.version++ })
    timeline.whole = true
    timeline.following = false
    this.timeline = timeline
    this.choose(null)
    try {
      await readRecording(await body, this.sink)
      timeline.seek(timeline.end)
    } catch {
      this.problem = 'badRecording'
    }
    this.version++
  }

  private take(frames: Frame[]): void {
    if (!this.timeline.push(frames)) {
      this.connect()
      return
    }
  }

  private readHash(): void {
    const view = location.hash.slice(1) as View
    if (VIEWS.includes(view)) this.view = view
  }
}

function stored<T extends string>(name: string, values: readonly T[]): T | null {
  const value = localStorage.getItem(`looseleaf-${name}`) as T
  return values.includes(value) ? value : null
}

export const studio = new Studio()
