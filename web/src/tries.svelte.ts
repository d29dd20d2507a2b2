import { readLines } from './feed/source'
import { studio } from './studio.svelte'

export interface Message {
  role: 'system' | 'user'
  content: string
}

export interface Sampling {
  /** Answers: samples, or the beams of a search. */
  n: number
  beams: boolean
  most: number
  temperature: number
}

export interface Asked extends Sampling {
  messages: readonly Message[]
  /** How the answer begins already: what is forked from. */
  begun: string
  /** What it goes on from, for its title. */
  from: string
}

interface Usage {
  prompt_tokens: number
  completion_tokens: number
  prompt_tokens_details?: { cached_tokens: number }
}

interface Chunk {
  choices?: { index: number; delta?: { content?: string }; finish_reason?: string | null }[]
  usage?: Usage | null
  error?: { message: string }
}

export type Progress = 'running' | 'done' | 'stopped' | 'failed'

/** A request that the page has sent, and what came of it. */
export class Try {
  /** What the engine calls it: its readers are `name/0`, `name/1`, ... */
  name = $state('')
  /** Of each answer, in words or less: places to fork at. */
  answers = $state<string[][]>([])
  reasons = $state<string[]>([])
  progress = $state<Progress>('running')
  problem = $state('')
  usage = $state.raw<Usage | null>(null)
  private readonly control = new AbortController()

  constructor(
    readonly number: number,
    readonly asked: Asked,
  ) {
    this.answers = Array.from({ length: asked.n }, () => [])
  }

  /** Its blocks turn free: the server ends whoever's client has gone. */
  stop(): void {
    if (this.progress !== 'running') return
    this.progress = 'stopped'
    this.control.abort()
  }

  get cached(): number {
    return this.usage?.prompt_tokens_details?.cached_tokens ?? 0
  }

  async run(): Promise<void> {
    try {
      const answer = await fetch('../v1/chat/completions', {
        method: 'POST',
        signal: this.control.signal,
        headers: {
          'content-type': 'application/json',
          ...(studio.key ? { authorization: `Bearer ${studio.key}` } : {}),
        },
        body: JSON.stringify(this.body()),
      })
      if (!answer.ok || !answer.body) {
        const told = (await answer.json().catch(() => ({}))) as Chunk
        throw new Error(told.error?.message ?? `HTTP ${answer.status}`)
      }
      this.name = answer.headers.get('x-looseleaf-requests')?.split(',')[0] ?? ''
      await readLines(answer.body, (lines) => lines.forEach((line) => this.take(line)))
      this.progress = 'done'
    } catch (error) {
      if (this.control.signal.aborted) return
      this.progress = 'failed'
      this.problem = error instanceof Error ? error.message : String(error)
    }
  }

  private body(): unknown {
    const { n, beams, most, temperature, messages, begun } = this.asked
    return {
      model: studio.about.model,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      n,
      max_tokens: most,
      ...(beams ? { use_beam_search: true } : { temperature }),
      messages: begun ? [...messages, { role: 'assistant', content: begun }] : messages,
      ...(begun ? { continue_final_message: true, add_generation_prompt: false } : {}),
    }
  }

  private take(line: string): void {
    if (!line.startsWith('data: ') || line === 'data: [DONE]') return
    const chunk = JSON.parse(line.slice(6)) as Chunk
    if (chunk.error) throw new Error(chunk.error.message)
    if (chunk.usage) this.usage = chunk.usage
    for (const { index, delta, finish_reason: reason } of chunk.choices ?? []) {
      if (delta?.content) this.answers[index]?.push(...words(delta.content))
      if (reason) this.reasons[index] = reason
    }
  }
}

/** Pieces of a text, each with the space after it. */
export function words(text: string): string[] {
  return text.match(/\S+\s*|\s+/g) ?? []
}

const MAX_TRIES = 12

/** All of this visit, the latest first. */
export class Tries {
  all = $state.raw<Try[]>([])
  private count = 0

  send(asked: Asked): Try {
    const sent = new Try(++this.count, asked)
    for (const old of this.all.slice(MAX_TRIES - 1)) old.stop()
    this.all = [sent, ...this.all.slice(0, MAX_TRIES - 1)]
    void sent.run()
    return sent
  }
}

export const tries = new Tries()
