import { FORMAT, type Frame } from './frames'

export type Status =
  | { state: 'connecting' }
  | { state: 'live' }
  | { state: 'recorded' }
  | { state: 'exported' }
  | { state: 'key' }
  | { state: 'lost'; why: string }

export interface Sink {
  frames(frames: Frame[]): void
  status(status: Status): void
  /** The feed is there, though it may have nothing to tell. */
  alive?(): void
}

/** Cuts a stream of text into lines. */
export class Lines {
  private rest = ''

  push(text: string): string[] {
    const lines = (this.rest + text).split('\n')
    this.rest = lines.pop() ?? ''
    return lines
  }
}

export function frameOf(line: string): Frame | null {
  const frame = JSON.parse(line) as Frame
  if (frame.kind === 'snapshot' && frame.format !== FORMAT) {
    throw new Error(`format ${frame.format}`)
  }
  return frame.kind === 'snapshot' || frame.kind === 'delta' ? frame : null
}

const WAITS = [500, 1000, 2000, 4000, 8000]

/** Reads the live feed until it is closed, and connects again whenever it was lost. */
export class LiveFeed {
  private control = new AbortController()
  private closed = false

  constructor(
    private url: string,
    private readonly key: string,
    private readonly sink: Sink,
  ) {
    void this.run()
  }

  close(): void {
    this.closed = true
    this.control.abort()
  }

  private async run(): Promise<void> {
    for (let tries = 0; !this.closed; tries++) {
      this.sink.status({ state: 'connecting' })
      let why = ''
      try {
        this.control = new AbortController()
        const answer = await fetch(this.url, {
          headers: this.key ? { authorization: `Bearer ${this.key}` } : {},
          signal: this.control.signal,
          cache: 'no-store',
        })
        if (answer.status === 401) {
          this.sink.status({ state: 'key' })
          return
        }
        if (!answer.ok || !answer.body) throw new Error(`HTTP ${answer.status}`)
        this.sink.status({ state: 'live' })
        // Whoever connects again knows what was.
        this.url = this.url.split('?')[0]!
        await readLines(answer.body, (lines) => {
          this.sink.alive?.()
          const frames = lines
            .filter((line) => line.startsWith('data: '))
            .map((line) => frameOf(line.slice(6)))
            .filter((frame) => frame !== null)
          if (frames.length) {
            tries = 0
            this.sink.frames(frames)
          }
        })
      } catch (error) {
        why = error instanceof Error ? error.message : String(error)
      }
      if (this.closed) return
      this.sink.status({ state: 'lost', why })
      await new Promise((done) => setTimeout(done, WAITS[Math.min(tries, WAITS.length - 1)]))
    }
  }
}

/** Reads a whole recording, given as a stream of lines. */
export async function readRecording(body: ReadableStream<Uint8Array>, sink: Sink): Promise<void> {
  let any = false
  await readLines(body, (lines) => {
    const frames = lines
      .filter((line) => line.length > 0)
      .map(frameOf)
      .filter((frame) => frame !== null)
    if (!any && frames.length && frames[0]!.kind !== 'snapshot') throw new Error('no recording')
    any ||= frames.length > 0
    sink.frames(frames)
  })
  if (!any) throw new Error('no recording')
  sink.status({ state: 'recorded' })
}

/** A file that somebody chose; compressed if its name ends in .gz. */
export function streamOf(file: File): ReadableStream<Uint8Array> {
  const stream = file.stream() as ReadableStream<Uint8Array<ArrayBuffer>>
  return file.name.endsWith('.gz')
    ? stream.pipeThrough(new DecompressionStream('gzip'))
    : stream
}

/** Calls `take` with the lines of a stream, as they come. */
export async function readLines(
  body: ReadableStream<Uint8Array>,
  take: (lines: string[]) => void,
): Promise<void> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  const lines = new Lines()
  for (;;) {
    const { value, done } = await reader.read()
    if (done) return
    take(lines.push(decoder.decode(value, { stream: true })))
  }
}
