// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

// Problem is one mistake in a configuration.
type Problem struct {
	// Line is the line of the key, 0 if the key is not in the file.
	Line int
	// Key is the dotted path of the key, "" if the file is not TOML.
	Key string
	// Message describes the mistake and the allowed values.
	Message string
}

// String returns text such as "line 3: node.slots_per_gpu is 0; allowed: 1 to
// 1000".
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Key != "" {
		b.WriteString(p.Key + " ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Error lists all mistakes in a configuration, by line.
type Error struct {
	// File is the file's path, "" if the text came from elsewhere.
	File     string
	Problems []Problem
}

// Error returns one line per problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
		if e.File != "" {
			lines[i] = e.File + ": " + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}

// Load reads the configuration of Nodes outside the pools in the file at path. If the content is
// invalid, the error is an *Error.
func Load(path string) (Config, error) {
	f, err := LoadFile(path)
	return f.Config, err
}

// Parse parses the configuration of Nodes outside the pools. Keys missing from data keep their
// defaults. A list or table array in data replaces the whole default. Parse reports all mistakes
// together as an *Error.
func Parse(data []byte) (Config, error) {
	f, err := ParseFile(data)
	return f.Config, err
}

func syntaxProblem(err error) Problem {
	var parse toml.ParseError
	if errors.As(err, &parse) {
		return Problem{Line: parse.Position.Line, Message: parse.Message}
	}
	return Problem{Message: err.Error()}
}

func keysOf(problems []Problem) map[string]bool {
	keys := make(map[string]bool, len(problems))
	for _, p := range problems {
		keys[p.Key] = true
	}
	return keys
}
