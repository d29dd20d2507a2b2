import type { Language } from '../i18n'
import { en } from './texts.en'
import { zh } from './texts.zh'

/** What a lesson says. In `steps`, `ask`, `choices` and `why` stand figures, as fill.ts tells. */
export interface LessonText {
  title: string
  about: string
  steps: Record<string, string>
  ask: string
  choices: string[]
  why: string
}

export interface LessonWords {
  /** Names of controls and their values, of rows, columns and parts of pictures. */
  terms: Record<string, string>
  lessons: Record<string, LessonText>
}

export const lessonWords: Record<Language, LessonWords> = { en, zh }

/** The word for a name, by itself or as the value of a control or a column; the name if there is
 * none. */
export type Term = (name: string, of?: string) => string

export function termIn(language: Language): Term {
  const { terms } = lessonWords[language]
  return (name, of) => (of && terms[`${of}_${name}`]) ?? terms[name] ?? name
}
