// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// decoder fills a Config from a parsed document. Unlike the TOML library, decoder continues after
// an error, so that a user sees all mistakes at once.
type decoder struct {
	problems []Problem
}

// decode copies the values of tree to cfg. decode returns the keys of tree that
// are unknown or have the wrong type.
func decode(tree map[string]any, cfg *Config) []Problem {
	var d decoder
	d.table("", tree, reflect.ValueOf(cfg).Elem())
	return d.problems
}

func (d *decoder) bad(key, format string, args ...any) {
	d.problems = append(d.problems, Problem{Key: key, Message: fmt.Sprintf(format, args...)})
}

// table decodes the keys of one table into the fields of a structure.
func (d *decoder) table(path string, tree map[string]any, into reflect.Value) {
	fields := fieldsByKey(into)
	keys := make([]string, 0, len(tree))
	for key := range tree {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		full := join(path, key)
		field, known := fields[key]
		if !known {
			allowed := slices.Collect(maps.Keys(fields))
			if path == "" {
				allowed = append(allowed, poolKey)
			}
			slices.Sort(allowed)
			d.bad(full, "is unknown; allowed here: %s", strings.Join(allowed, ", "))
			continue
		}
		d.value(full, tree[key], field)
	}
}

// value decodes one value into a field of any type in Config.
func (d *decoder) value(path string, v any, into reflect.Value) {
	if into.Type() == reflect.TypeFor[Duration]() {
		d.duration(path, v, into)
		return
	}
	switch into.Kind() {
	case reflect.Struct:
		table, ok := v.(map[string]any)
		if !ok {
			d.wrongType(path, v, "a table")
			return
		}
		d.table(path, table, into)
	case reflect.Slice:
		d.list(path, v, into)
	case reflect.Int, reflect.Uint64:
		d.integer(path, v, into)
	default: // bool and string
		given := reflect.ValueOf(v)
		if given.Kind() != into.Kind() {
			d.wrongType(path, v, nameOf(into.Kind()))
			return
		}
		into.Set(given)
	}
}

// list replaces a slice. Elements that are tables start from their defaults.
func (d *decoder) list(path string, v any, into reflect.Value) {
	items, ok := elements(v)
	if !ok {
		d.wrongType(path, v, "a list")
		return
	}
	list := reflect.MakeSlice(into.Type(), len(items), len(items))
	for i, item := range items {
		if list.Type().Elem() == reflect.TypeFor[DeviceSharing]() {
			list.Index(i).Set(reflect.ValueOf(defaultSharing("")))
		}
		d.value(fmt.Sprintf("%s[%d]", path, i), item, list.Index(i))
	}
	into.Set(list)
}

// elements returns the elements of a TOML list. The library uses a separate
// type for arrays of tables.
func elements(v any) ([]any, bool) {
	if tables, ok := v.([]map[string]any); ok {
		items := make([]any, len(tables))
		for i := range tables {
			items[i] = tables[i]
		}
		return items, true
	}
	items, ok := v.([]any)
	return items, ok
}

func (d *decoder) integer(path string, v any, into reflect.Value) {
	n, ok := v.(int64)
	if !ok {
		d.wrongType(path, v, "a whole number")
		return
	}
	if into.Kind() == reflect.Int {
		into.SetInt(n)
		return
	}
	if n < 0 {
		d.bad(path, "is %d; allowed: 0 or more", n)
		return
	}
	into.SetUint(uint64(n))
}

func (d *decoder) duration(path string, v any, into reflect.Value) {
	s, ok := v.(string)
	if !ok {
		d.wrongType(path, v, `a duration such as "1s" or "200ms"`)
		return
	}
	t, err := time.ParseDuration(s)
	if err != nil {
		d.bad(path, `is %q; allowed: a duration such as "1s" or "200ms"`, s)
		return
	}
	into.Set(reflect.ValueOf(Duration{t}))
}

func (d *decoder) wrongType(path string, v any, want string) {
	d.bad(path, "is %s; allowed: %s", typeName(v), want)
}

func nameOf(k reflect.Kind) string {
	if k == reflect.Bool {
		return "true or false"
	}
	return "a string"
}

func typeName(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case bool:
		return "true or false"
	case int64:
		return "a whole number"
	case float64:
		return "a number with a fraction"
	case map[string]any:
		return "a table"
	case []any, []map[string]any:
		return "a list"
	default:
		return "a date or time"
	}
}

// fieldsByKey maps the keys of a table to the fields of its structure.
func fieldsByKey(v reflect.Value) map[string]reflect.Value {
	fields := make(map[string]reflect.Value, v.NumField())
	for i := range v.NumField() {
		fields[v.Type().Field(i).Tag.Get("toml")] = v.Field(i)
	}
	return fields
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
