import type { FlashKind } from '../feed/timeline'
import type { Phase } from '../feed/lanes'

/** Colours that people with any kind of colour vision tell apart (after Okabe and Ito), and that
 * differ in lightness as well. */
export interface Palette {
  free: string
  freeLine: string
  cached: string
  cachedLine: string
  /** By ref count: 1, 2, 3 to 4, 5 to 8, more. */
  held: readonly [string, string, string, string, string]
  heldEmpty: readonly [string, string, string, string, string]
  onHeld: readonly [string, string, string, string, string]
  pinned: string
  /** The mark of what is kept outside the pool as well, and the line around it. */
  kept: string
  keptEdge: string
  flash: Record<FlashKind, string>
  selected: string
  found: string
  text: string
  faint: string
  grid: string
  phase: Record<Phase, string>
  prompt: string
  decode: string
  lines: readonly string[]
}

export const light: Palette = {
  free: '#ffffff',
  freeLine: '#d5d9e0',
  cached: '#f3d598',
  cachedLine: '#c98a00',
  held: ['#7cc4ee', '#3b93cf', '#0a6bb0', '#07487d', '#032a4d'],
  heldEmpty: ['#dbeffb', '#cfe4f3', '#c5daea', '#bccedd', '#b4c2cf'],
  onHeld: ['#06263c', '#ffffff', '#ffffff', '#ffffff', '#ffffff'],
  pinned: '#b3478f',
  kept: '#1c1f26',
  keptEdge: '#ffffff',
  flash: { written: '#00a67d', copied: '#d55e00', evicted: '#1c1f26' },
  selected: '#d55e00',
  found: '#b3478f',
  text: '#1c1f26',
  faint: '#5d6675',
  grid: '#e3e6ec',
  phase: {
    waiting: '#cfd4dd',
    held: '#e3b1d0',
    running: '#e2eef8',
    preempted: '#f0a36b',
    swapped: '#b98a5f',
  },
  prompt: '#0a6bb0',
  decode: '#00a67d',
  lines: ['#0a6bb0', '#d55e00', '#00906c', '#b3478f'],
}

export const dark: Palette = {
  free: '#171a21',
  freeLine: '#2e333e',
  cached: '#54400f',
  cachedLine: '#e0a526',
  held: ['#1f6a9e', '#3f9bd8', '#7cc4ee', '#b4e0fa', '#f0faff'],
  heldEmpty: ['#12283a', '#17344a', '#1f4058', '#274c66', '#305874'],
  onHeld: ['#ffffff', '#04141f', '#04141f', '#04141f', '#04141f'],
  pinned: '#e58cc6',
  kept: '#ffffff',
  keptEdge: '#0f1116',
  flash: { written: '#2fd6a8', copied: '#ff8a3c', evicted: '#ffffff' },
  selected: '#ff8a3c',
  found: '#e58cc6',
  text: '#e8ebf1',
  faint: '#9aa4b5',
  grid: '#282d37',
  phase: {
    waiting: '#3b4250',
    held: '#6d3a5b',
    running: '#16293a',
    preempted: '#b8621f',
    swapped: '#7a5530',
  },
  prompt: '#4ea8e6',
  decode: '#2fd6a8',
  lines: ['#4ea8e6', '#ff8a3c', '#2fd6a8', '#e58cc6'],
}

/** Index into `held` for a ref count of 1 or more. */
export function depth(refs: number): number {
  return refs <= 2 ? refs - 1 : refs <= 4 ? 2 : refs <= 8 ? 3 : 4
}
