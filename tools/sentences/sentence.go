// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// paragraph is a run of prose on consecutive lines.
type paragraph []line

// line is a line of prose without the marks of its language, and the line's number in the file.
type line struct {
	number int
	text   string
}

// sentence is a sentence, the number of its words, and the line on which it begins.
type sentence struct {
	line, words int
	text        string
}

// word matches a word. Text in backquotes is a part of one word, even if it contains spaces.
var word = regexp.MustCompile("(?:`[^`]*`|\\S)+")

// abbreviations end with a full stop, but do not end a sentence.
var abbreviations = []string{"al.", "cf.", "e.g.", "i.e.", "vs."}

// sentences splits a paragraph after each word that ends a sentence.
func (p paragraph) sentences() []sentence {
	if len(p) == 0 {
		return nil
	}
	lines := make([]string, len(p))
	for i, l := range p {
		lines[i] = l.text
	}
	text := strings.Join(lines, "\n")
	var all []sentence
	var current []string
	begin := 0
	for _, at := range word.FindAllStringIndex(text, -1) {
		if len(current) == 0 {
			begin = strings.Count(text[:at[0]], "\n")
		}
		current = append(current, text[at[0]:at[1]])
		if ends(text[at[0]:at[1]]) {
			all = append(all, join(p[begin].number, current))
			current = nil
		}
	}
	if len(current) > 0 {
		all = append(all, join(p[begin].number, current))
	}
	return all
}

// join returns the sentence that consists of the words.
func join(line int, words []string) sentence {
	s := sentence{line: line, text: strings.ReplaceAll(strings.Join(words, " "), "\n", " ")}
	for _, w := range words {
		if strings.ContainsFunc(w, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			s.words++
		}
	}
	return s
}

// ends reports whether a sentence ends after a word.
func ends(word string) bool {
	word = strings.Trim(word, `()"'*_`)
	return !slices.Contains(abbreviations, word) && word != "" && strings.ContainsAny(word[len(word)-1:], ".?!;")
}
