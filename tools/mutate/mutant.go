// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// A mutant is one small change of a source file.
type mutant struct {
	file     string // relative to the repository
	line     int
	function string // the changed function, such as "Ledger.Plan"
	key      string // identifies the mutant even if its function moves in the file

	start, end int    // the range of replaced bytes in the file
	text       string // the replacement

	rank [sha256.Size]byte // the mutant's place in a shuffled list
}

// packageLevel is the function name of a mutant outside functions.
const packageLevel = "package"

// A source is a file from which mutants are made.
type source struct {
	file    string // relative to the repository
	text    string
	mutants []mutant
}

// add records the mutant that replaces bytes of the source by text.
func (s *source) add(function string, start, end int, text string) {
	if function == "" {
		function = packageLevel
	}
	first := strings.LastIndexByte(s.text[:start], '\n') + 1
	last := len(s.text)
	if i := strings.IndexByte(s.text[end:], '\n'); i >= 0 {
		last = end + i
	}
	before := oneLine(s.text[first:last])
	after := oneLine(s.text[first:start] + text + s.text[end:last])
	if after == "" || after == ";" {
		after = "(dropped)"
	}
	s.mutants = append(s.mutants, mutant{
		file: s.file, line: 1 + strings.Count(s.text[:start], "\n"), function: function,
		key:   fmt.Sprintf("%s: %s: %s => %s", s.file, function, before, after),
		start: start, end: end, text: text,
	})
}

// oneLine joins lines with single blanks and truncates a long result.
func oneLine(text string) string {
	const longest = 160
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= longest {
		return text
	}
	cut := longest
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

// apply returns the text of the mutant's file with the change. Lines keep their numbers.
func (m mutant) apply(text string) string {
	lines := strings.Count(text[m.start:m.end], "\n") - strings.Count(m.text, "\n")
	return text[:m.start] + m.text + strings.Repeat("\n", max(lines, 0)) + text[m.end:]
}

// String formats the mutant for the output: its key with the line's number.
func (m mutant) String() string {
	return fmt.Sprintf("%s:%d%s", m.file, m.line, strings.TrimPrefix(m.key, m.file))
}

// shuffle orders mutants randomly. A mutant's place depends only on the seed and the mutant's key,
// so changes of other code do not change the selection.
func shuffle(mutants []mutant, seed uint64) {
	same := map[string]int{}
	for i := range mutants {
		m := &mutants[i]
		m.rank = sha256.Sum256(fmt.Appendf(nil, "%d %d %s", seed, same[m.key], m.key))
		same[m.key]++
	}
	slices.SortFunc(mutants, func(a, b mutant) int { return bytes.Compare(a.rank[:], b.rank[:]) })
}
