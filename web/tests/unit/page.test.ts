import { expect, test } from 'vitest'
import { gridFor } from '../../src/draw/shelf'
import { dark, depth, light } from '../../src/draw/palette'
import { firstMark } from '../../src/draw/readers'
import { preferredLanguage, words } from '../../src/i18n'

test('both languages have all words', () => {
  expect(Object.keys(words.zh).sort()).toEqual(Object.keys(words.en).sort())
  for (const [word, text] of Object.entries(words.zh)) {
    expect(text, word).not.toBe('')
    expect(text, `${word}: full-width punctuation beside Chinese`).not.toMatch(/\p{sc=Han}[,;:?!()]/u)
  }
})

test('the language that is preferred', () => {
  expect(preferredLanguage(['de', 'zh-TW', 'en'])).toBe('zh')
  expect(preferredLanguage(['en-GB', 'zh'])).toBe('en')
  expect(preferredLanguage(['fr'])).toBe('en')
})

test.each([1, 100, 640, 9_000, 100_000])('%i blocks fit', (blocks) => {
  for (const width of [330, 1000]) {
    const { columns, rows, pitch, cell } = gridFor(blocks, width, 500)
    expect(columns * rows).toBeGreaterThanOrEqual(blocks)
    expect(columns * pitch).toBeLessThanOrEqual(width)
    expect(cell).toBeGreaterThanOrEqual(2)
    if (pitch > 3) expect(rows * pitch).toBeLessThanOrEqual(500)
  }
})

test('deeper sharing is another colour, and each differs in lightness', () => {
  expect([1, 2, 3, 4, 5, 8, 9, 500].map(depth)).toEqual([0, 1, 2, 2, 3, 3, 4, 4])
  for (const { held, free, cached } of [light, dark]) {
    const brightness = [free, ...held].map(luminance)
    const sorted = [...brightness].sort((a, b) => (held === light.held ? b - a : a - b))
    expect(brightness).toEqual(sorted)
    expect(cached).not.toBe(free)
  }
})

function luminance(color: string): number {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16)) as [number, number, number]
  return 0.2126 * r + 0.7152 * g + 0.0722 * b
}

test('the first mark in sight', () => {
  const marks = [0, 1, 1, 1, 2, 1, 2, 3, 1]
  expect(firstMark(marks, -1)).toBe(0)
  expect(firstMark(marks, 1.5)).toBe(3)
  expect(firstMark(marks, 9)).toBe(9)
})
