// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

// locate sets the lines of problems whose keys are in the document. A key
// without a line, such as a key inside an inline table, gets the line of the
// nearest enclosing key.
func locate(problems []Problem, document string) {
	lines := keyLines(document)
	for i, p := range problems {
		for key := p.Key; key != ""; key = parent(key) {
			// A list of tables is on the line of its first table.
			if line := cmp.Or(lines[key], lines[key+"[0]"]); line > 0 {
				problems[i].Line = line
				break
			}
		}
	}
}

func parent(key string) string {
	return key[:max(strings.LastIndexAny(key, ".["), 0)]
}

// maxLocated bounds the work of keyLines. maxLocated is ten times the length of
// the default file.
const maxLocated = 2000 // lines

// keyLines returns the line of each key in a valid document. The TOML library does not expose
// lines. Therefore keyLines parses ever longer prefixes of the document. A key is on the line after
// the last valid prefix without it. The cost is quadratic, but Parse calls keyLines only for
// documents with mistakes.
func keyLines(document string) map[string]int {
	found := make(map[string]int)
	lines := strings.SplitAfter(document, "\n")
	if len(lines) > maxLocated {
		return found
	}
	elements := make(map[string]int)
	length, seen, start, whole := 0, 0, 1, true
	for i, line := range lines {
		length += len(line)
		if !whole || !isBlank(line) {
			var tree map[string]any
			meta, err := toml.Decode(document[:length], &tree)
			whole = err == nil // an invalid prefix ends inside a list or a long string
			if !whole {
				continue
			}
			for _, key := range meta.Keys()[seen:] {
				name := indexed(meta, key, elements)
				if _, again := found[name]; !again {
					found[name] = start
				}
			}
			seen = len(meta.Keys())
		}
		start = i + 2
	}
	return found
}

func isBlank(line string) bool {
	line = strings.TrimSpace(line)
	return line == "" || line[0] == '#'
}

// indexed returns a key in the form of Problem.Key: the index of the element
// follows each table array. elements counts the headers of each array so far.
func indexed(meta toml.MetaData, key toml.Key, elements map[string]int) string {
	if meta.Type(key...) == "ArrayHash" {
		elements[key.String()]++
	}
	name := ""
	for i, part := range key {
		name = join(name, part)
		if n := elements[key[:i+1].String()]; n > 0 {
			name += fmt.Sprintf("[%d]", n-1)
		}
	}
	return name
}
