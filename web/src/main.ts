import { mount } from 'svelte'
import 'uplot/dist/uPlot.min.css'
import './app.css'
import App from './App.svelte'
import { studio } from './studio.svelte'

mount(App, { target: document.getElementById('app')! })
void studio.start()

let last = performance.now()
function frame(now: number): void {
  studio.timeline.tick(Math.min(0.5, (now - last) / 1000))
  last = now
  requestAnimationFrame(frame)
}
requestAnimationFrame(frame)
