package config

import (
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

// locate fills in the lines of problems whose keys stand in the document. A
// key that doesn't, such as one inside an inline table, gets the line of the
// nearest key around it.
func locate(problems []Problem, document string) {
	lines := keyLines(document)
	for i, p := range problems {
		for key := p.Key; key != ""; key = parent(key) {
			if line, ok := lines[key]; ok {
				problems[i].Line = line
				break
			}
		}
	}
}

func parent(key string) string {
	return key[:max(strings.LastIndexAny(key, ".["), 0)]
}

// maxLocated bounds the work of keyLines; ten times the default's length.
const maxLocated = 2000 // lines

// keyLines finds the line on which each key of a valid document is set. The
// library keeps that to itself, so ever longer beginnings of the document are
// parsed: a key stands on the line after the last beginning without it that
// parsed. This is quadratic, and done only for a document with mistakes.
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
			whole = err == nil // else in the middle of a list or a long string
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

// indexed writes a key as problems name it: with the element's number after
// each table array. elements counts the headers met of each array.
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
