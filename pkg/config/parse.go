package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	// Line is where the key stands, 0 when it is not in the file.
	Line int
	// Key is the dotted path of the key, "" when the file is not TOML.
	Key string
	// Message says what is wrong with it and what is allowed.
	Message string
}

// String is "line 3: node.slots_per_gpu is 0; allowed: 1 to 1000".
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

// Error lists everything that is wrong with a configuration, by line.
type Error struct {
	// File is the file's path, "" when the text came from elsewhere.
	File     string
	Problems []Problem
}

// Error has one line per problem.
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

// Load reads the configuration in the file at path. What is wrong with its
// content is an *Error.
func Load(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := Parse(data)
	var bad *Error
	if errors.As(err, &bad) {
		bad.File = path
	}
	return cfg, err
}

// Parse reads a configuration; keys that data leaves out have their defaults.
// A list or table array in data replaces the default whole. Everything that
// is wrong is reported at once, as an *Error.
func Parse(data []byte) (Config, error) {
	var tree map[string]any
	if _, err := toml.Decode(string(data), &tree); err != nil {
		return Config{}, &Error{Problems: []Problem{syntaxProblem(err)}}
	}
	cfg := Default()
	problems := decode(tree, &cfg)
	problems = append(problems, check(cfg, keysOf(problems))...)
	if len(problems) == 0 {
		return cfg, nil
	}
	locate(problems, string(data))
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
	return Config{}, &Error{Problems: problems}
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
