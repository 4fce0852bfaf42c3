// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// key is a key of config.toml with its description.
type key struct {
	path    string // such as "node.slots_per_gpu"
	typ     reflect.Type
	comment string // as in config.toml
	value   string // the default in TOML
	allowed string // the allowed values, as the configuration's errors state them
}

// keys reads all keys from the structure, config.toml and the checks.
func keys(root string) ([]key, error) {
	text, err := os.ReadFile(filepath.Join(root, "config.toml"))
	if err != nil {
		return nil, fmt.Errorf("read config.toml: %w", err)
	}
	found := scan(string(text))
	var all []key
	for _, leaf := range leaves("", reflect.TypeFor[config.Config]()) {
		said, ok := found[leaf.path]
		if !ok {
			return nil, fmt.Errorf("config.toml does not contain %s", leaf.path)
		}
		leaf.comment, leaf.value, leaf.allowed = said.comment, said.value, allowed(leaf)
		all = append(all, leaf)
	}
	return all, nil
}

// leaves lists the keys that hold values.
func leaves(path string, typ reflect.Type) []key {
	inner := typ
	if isTableArray(typ) {
		inner = typ.Elem()
	}
	if inner.Kind() != reflect.Struct || inner == reflect.TypeFor[config.Duration]() {
		return []key{{path: path, typ: typ}}
	}
	var all []key
	for i := range inner.NumField() {
		field := inner.Field(i)
		all = append(all, leaves(strings.TrimPrefix(path+"."+field.Tag.Get("toml"), "."), field.Type)...)
	}
	return all
}

func isTableArray(typ reflect.Type) bool {
	return typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct
}

// said holds the comment and the default of a key in config.toml.
type said struct{ comment, value string }

var (
	header     = regexp.MustCompile(`^\[+([a-z0-9_.]+)\]+$`)
	assignment = regexp.MustCompile(`^([a-z0-9_]+) = ([^#]*?)(?:\s+# (.*))?$`)
)

// scan reads comments and defaults. If config.toml repeats a table, scan uses the first table with
// a comment.
func scan(text string) map[string]said {
	found := map[string]said{}
	var table, name, value string
	var comment []string
	for line := range strings.SplitSeq(text, "\n") {
		trimmed := strings.TrimSpace(line)
		match := assignment.FindStringSubmatch(trimmed)
		switch {
		case name != "": // a list over several lines
			value += " " + trimmed
		case trimmed == "":
			comment = nil
			continue
		case trimmed[0] == '#':
			comment = append(comment, trimmed[1:])
			continue
		case header.MatchString(trimmed):
			table, comment = header.FindStringSubmatch(trimmed)[1], nil
			continue
		case match != nil:
			name, value = match[1], match[2]
			if match[3] != "" {
				comment = []string{" " + match[3]}
			}
		}
		var parsed map[string]any
		if _, err := toml.Decode("x = "+value, &parsed); err != nil {
			continue // the list continues
		}
		path := table + "." + name
		if _, again := found[path]; !again {
			value = strings.NewReplacer("[ ", "[", ", ]", "]").Replace(value)
			found[path] = said{strings.Join(comment, "\n"), value}
		}
		name, comment = "", nil
	}
	return found
}

// allowed returns the allowed values as the configuration's error for a wrong
// value states them.
func allowed(k key) string {
	for _, wrong := range wrongValues(k.typ) {
		_, err := config.Parse([]byte(document(k.path, wrong)))
		var bad *config.Error
		if !errors.As(err, &bad) {
			continue
		}
		for _, problem := range bad.Problems {
			if _, text, ok := strings.Cut(problem.Message, "allowed: "); ok && bare(problem.Key) == k.path {
				return text
			}
		}
	}
	return ""
}

var index = regexp.MustCompile(`\[\d+\]`)

// bare returns the path of a key without the indices of elements.
func bare(path string) string { return index.ReplaceAllString(path, "") }

// wrongValues returns values of the right type that no key of this type allows.
func wrongValues(typ reflect.Type) []string {
	switch {
	case typ == reflect.TypeFor[config.Duration]():
		return []string{`"24h"`}
	case typ.Kind() == reflect.String:
		return []string{`"?"`, `""`}
	case typ.Kind() == reflect.Int, typ.Kind() == reflect.Uint64:
		return []string{"99999999"}
	case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Int:
		return []string{"[99999999]"}
	case typ.Kind() == reflect.Slice:
		return []string{`["?"]`, "[]"}
	}
	return nil
}

// document returns a configuration that sets one key.
func document(path, value string) string {
	dot := strings.LastIndex(path, ".")
	table, name := path[:dot], path[dot+1:]
	switch table {
	case "dialects.metagpu.device_sharing", "injection.direct.mounts", "resize.maximum":
		return fmt.Sprintf("[[%s]]\n%s = %s\n", table, name, value)
	}
	return fmt.Sprintf("[%s]\n%s = %s\n", table, name, value)
}

// inJSON converts a value of config.toml to JSON.
func inJSON(value string) (json.RawMessage, error) {
	var parsed struct {
		X any `toml:"x"`
	}
	if _, err := toml.Decode("x = "+value, &parsed); err != nil {
		return nil, fmt.Errorf("parse %s in config.toml: %w", value, err)
	}
	return json.Marshal(parsed.X)
}
