// SPDX-License-Identifier: Apache-2.0

// Command sentences reports the sentences of 25 words or more in the comments of source files and in
// Markdown documents. "make lint" runs the command.
//
//	sentences FILE...
//
// A sentence ends at a full stop, a question mark, an exclamation mark or a semicolon. A sentence also
// ends with its paragraph, list item or table cell. A colon ends no sentence, because a reader must
// remember the words before the colon. Text in backquotes counts as one word, and punctuation without a
// letter or a digit counts as none.
package main

import (
	"fmt"
	"os"
)

// longest is the number of words from which a sentence is too long.
const longest = 25

func main() {
	failed := false
	for _, file := range os.Args[1:] {
		long, err := check(file)
		if err != nil {
			fmt.Fprintln(os.Stderr, "sentences:", err)
			os.Exit(2)
		}
		for _, s := range long {
			fmt.Fprintf(os.Stderr, "%s:%d: %d words: %s\n", file, s.line, s.words, s.text)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// check returns the sentences of a file that are too long.
func check(file string) ([]sentence, error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	prose, err := read(file, string(source))
	if err != nil {
		return nil, err
	}
	var long []sentence
	for _, p := range prose {
		for _, s := range p.sentences() {
			if s.words >= longest {
				long = append(long, s)
			}
		}
	}
	return long, nil
}
