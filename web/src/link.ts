import type { Language } from './i18n'

/** What a link says of the page: `#shelf&t=12.3&reader=5&block=17&lang=zh`. */
export interface Link {
  view: string
  /** Where in the view, as in `#view/place`. */
  place: string
  /** Seconds: of a recording from its beginning, else on the engine's clock. */
  t: number | null
  reader: number | null
  block: number | null
  query: string
  language: Language | null
  /** Whatever else it says, which is for the view. */
  rest: [string, string][]
}

export function parseLink(hash: string): Link {
  const [path = '', ...fields] = hash.replace(/^#/, '').split('&')
  const [view = '', ...place] = path.split('/')
  const given = new URLSearchParams(fields.join('&'))
  const number = (name: string): number | null => {
    const text = given.get(name)
    given.delete(name)
    const value = text ? Number(text) : NaN
    return Number.isFinite(value) ? value : null
  }
  const whole = (name: string): number | null => {
    const value = number(name)
    return value !== null && Number.isInteger(value) && value >= 0 ? value : null
  }
  const [t, reader, block] = [number('t'), whole('reader'), whole('block')]
  const language = given.get('lang')
  const query = given.get('q') ?? ''
  given.delete('lang')
  given.delete('q')
  return {
    view,
    place: place.join('/'),
    t,
    reader,
    block,
    query,
    language: language === 'en' || language === 'zh' ? language : null,
    rest: [...given],
  }
}

export function formatLink(link: Link): string {
  const fields: [string, string][] = []
  // Rounded up, so that the frame of just then is not left out: frames are tenths apart.
  if (link.t !== null) fields.push(['t', String(Math.ceil(1000 * link.t - 1e-6) / 1000)])
  if (link.reader !== null) fields.push(['reader', String(link.reader)])
  if (link.block !== null) fields.push(['block', String(link.block)])
  if (link.query) fields.push(['q', link.query])
  if (link.language) fields.push(['lang', link.language])
  fields.push(...link.rest)
  return [
    `#${link.view}${link.place && '/'}${link.place}`,
    ...fields.map(([name, value]) => `${name}=${encodeURIComponent(value)}`),
  ].join('&')
}

const WRITE_MS = 400

/** Keeps the page's address a link to what is shown. */
export class Address {
  private timer: ReturnType<typeof setTimeout> | undefined

  constructor(private readonly link: () => Link) {}

  /** Something that a link tells may be another. */
  changed(): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined
      const hash = formatLink(this.link())
      if (hash !== location.hash) history.replaceState(history.state, '', hash)
    }, WRITE_MS)
  }
}
