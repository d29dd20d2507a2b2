import { MARK, type Lane } from '../feed/lanes'
import type { Palette } from './palette'

export const LANE_HEIGHT = 20
const BAR = 13
/** Pixels at the bottom, for the times. */
export const AXIS = 16

export interface LaneView {
  lanes: readonly Lane[]
  /** Seconds, at the left and right edge. */
  from: number
  to: number
  width: number
  height: number
  /** Pixels that are scrolled away above. */
  top: number
  /** For the names on the left. */
  labels: number
  selected: number | null
  /** Of lanes that belong together. */
  colorOf: (id: string) => string | undefined
  scale: number
}

/** Lanes of requests through time, the part of them that is in sight. */
export function paintReaders(
  context: CanvasRenderingContext2D,
  view: LaneView,
  palette: Palette,
): void {
  const { from, to, width, height, labels, scale, top } = view
  context.setTransform(scale, 0, 0, scale, 0, 0)
  context.clearRect(0, 0, width, height)
  const across = width - labels
  const x = (time: number) =>
    labels + (across * (Math.min(to, Math.max(from, time)) - from)) / (to - from)
  paintGrid(context, view, palette, x)
  const first = Math.max(0, Math.floor(top / LANE_HEIGHT))
  const last = Math.min(view.lanes.length, Math.ceil((top + height) / LANE_HEIGHT))
  context.textBaseline = 'middle'
  context.textAlign = 'left'
  context.save()
  context.beginPath()
  context.rect(0, 0, width, height - AXIS)
  context.clip()
  for (let row = first; row < last; row++) {
    const lane = view.lanes[row]!
    const y = row * LANE_HEIGHT - top + (LANE_HEIGHT - BAR) / 2
    const own = view.colorOf(lane.id)
    if (lane.n === view.selected || own) {
      context.fillStyle = own ?? palette.selected
      context.globalAlpha = 0.16
      context.fillRect(0, y - 3, width, LANE_HEIGHT)
      context.globalAlpha = 1
    }
    paintLane(context, lane, y, view, palette, x)
    context.fillStyle = own ?? (lane.n === view.selected ? palette.selected : palette.faint)
    context.font = `${lane.n === view.selected ? 600 : 400} 11px system-ui, sans-serif`
    context.fillText(shorten(lane.id, labels), 4, y + BAR / 2 + 0.5)
  }
  context.restore()
}

function paintLane(
  context: CanvasRenderingContext2D,
  lane: Lane,
  y: number,
  { from, to }: LaneView,
  palette: Palette,
  x: (time: number) => number,
): void {
  for (const { phase, start, end } of lane.segments) {
    if (end < from || start > to) continue
    const left = x(start)
    const right = Math.max(left + 1, x(end))
    context.fillStyle = palette.phase[phase]
    const thin = phase === 'waiting' || phase === 'held'
    context.fillRect(left, thin ? y + 4 : y, right - left, thin ? BAR - 8 : BAR)
  }
  const { marks } = lane
  let i = firstMark(marks, from)
  // A run of decoding steps that would be narrower than a pixel each is one bar.
  while (i < marks.length) {
    const start = marks[i]!
    if (start > to) break
    const tokens = marks[i + 2]!
    let end = marks[i + 1]!
    if (tokens < 0) {
      context.fillStyle = palette.prompt
      const left = x(start)
      context.fillRect(left, y, Math.max(1.5, x(end) - left - 0.5), BAR)
      i += MARK
      continue
    }
    let next = i + MARK
    while (next < marks.length && marks[next + 2]! > 0 && x(marks[next]!) - x(end) < 0.75) {
      end = marks[next + 1]!
      next += MARK
    }
    context.fillStyle = palette.decode
    const left = x(start)
    context.fillRect(left, y + 3, Math.max(1, x(end) - left), BAR - 6)
    i = next
  }
  if (lane.ended >= from && lane.ended <= to) {
    context.fillStyle = lane.reason === 'abort' || lane.reason === 'error'
      ? palette.flash.copied
      : palette.text
    const right = x(lane.ended)
    if (lane.reason === 'abort' || lane.reason === 'error') {
      context.font = '700 12px system-ui, sans-serif'
      context.fillText('×', right + 1, y + BAR / 2)
    } else {
      context.fillRect(right - 1, y - 1, 2, BAR + 2)
    }
  }
}

function paintGrid(
  context: CanvasRenderingContext2D,
  { from, to, height, width, labels }: LaneView,
  palette: Palette,
  x: (time: number) => number,
): void {
  const span = to - from
  const wanted = span / Math.max(2, (width - labels) / 90)
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120].find((s) => s >= wanted) ?? 300
  context.strokeStyle = palette.grid
  context.fillStyle = palette.faint
  context.font = '10px system-ui, sans-serif'
  context.textBaseline = 'bottom'
  context.textAlign = 'right'
  context.lineWidth = 1
  context.beginPath()
  for (let back = 0; back <= span; back += step) {
    const at = Math.round(x(to - back)) - 0.5
    context.moveTo(at, 0)
    context.lineTo(at, height - AXIS)
    const text = back === 0 ? '0 s' : `−${Number(back.toFixed(1))} s`
    if (at - labels > 20) context.fillText(text, at, height)
  }
  context.stroke()
}

/** The index of the first mark that ends after `from`. */
export function firstMark(marks: readonly number[], from: number): number {
  let low = 0
  let high = marks.length / MARK
  while (low < high) {
    const middle = (low + high) >> 1
    if (marks[middle * MARK + 1]! < from) low = middle + 1
    else high = middle
  }
  return low * MARK
}

function shorten(name: string, pixels: number): string {
  const most = Math.max(3, Math.floor((pixels - 8) / 6.2))
  return name.length > most ? `…${name.slice(1 - most)}` : name
}
