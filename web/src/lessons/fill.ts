import type { Figures } from './data'

/** How the page writes numbers. */
export interface Writer {
  number(value: number, digits?: number): string
  bytes(value: number): string
}

/**
 * `{name}` is a figure, `{name|block|blocks}` one with the word that goes with it, `{name%}` a share
 * of 1 with one decimal or, as `{name%2}`, with so many; `{name.2}` has two decimals, and
 * `{name:bytes}` is a size.
 */
export const PLACEHOLDER = /\{(\w+)(?:%(\d?)|\.(\d)|(:bytes)|\|([^|}]*)\|([^}]*))?\}/g

/** The text with its figures. Raises for one that is not there. */
export function fill(text: string, figures: Figures, write: Writer): string {
  return text.replace(PLACEHOLDER, (_, name: string, ...groups: (string | undefined)[]) => {
    const [percent, decimals, bytes, one, many] = groups
    const value = figures[name]
    if (value === undefined) throw new Error(`${name} is no figure of this step`)
    if (typeof value === 'string') return value
    if (Array.isArray(value)) return `[${value.join(', ')}]`
    if (bytes) return write.bytes(value)
    if (percent !== undefined) return share(value, write, percent === '' ? 1 : Number(percent))
    if (decimals !== undefined) return write.number(value, Number(decimals))
    const number = plain(value, write)
    if (one === undefined) return number
    return `${number} ${value === 1 ? one : many}`
  })
}

export function share(value: number, write: Writer, digits: number): string {
  return `${write.number(100 * value, digits)}%`
}

/** With at most one decimal. */
export function plain(value: number, write: Writer): string {
  const rounded = Math.round(10 * value) / 10
  return write.number(rounded, Number.isInteger(rounded) ? 0 : 1)
}

/** Names of all figures that a text has. */
export function namesIn(text: string): string[] {
  return [...text.matchAll(PLACEHOLDER)].map((match) => match[1]!)
}
