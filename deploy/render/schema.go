// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

const schemaFile = "deploy/chart/values.schema.json"

// values is the schema of all values but config.
//
//go:embed values.json
var values []byte

// schema is a part of JSON Schema.
type schema struct {
	Schema      string             `json:"$schema,omitempty"`
	Description string             `json:"description,omitempty"`
	Type        string             `json:"type,omitempty"`
	Default     json.RawMessage    `json:"default,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	Minimum     *int               `json:"minimum,omitempty"`
	Maximum     *int               `json:"maximum,omitempty"`
	MaxLength   *int               `json:"maxLength,omitempty"`
	Pattern     string             `json:"pattern,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Additional  json.RawMessage    `json:"additionalProperties,omitempty"`
}

var none = json.RawMessage("false")

func makeSchema(root string) ([]byte, error) {
	var whole schema
	if err := json.Unmarshal(values, &whole); err != nil {
		return nil, fmt.Errorf("parse values.json: %w", err)
	}
	all, err := keys(root)
	if err != nil {
		return nil, err
	}
	tree := &schema{Description: "keys of config.toml that differ from their defaults", Type: "object", Additional: none}
	for _, k := range all {
		leaf, err := leafSchema(k)
		if err != nil {
			return nil, err
		}
		tree.put(strings.Split(k.path, "."), leaf, "")
	}
	tree.Properties["pool"] = poolSchema(tree)
	whole.Properties["config"] = tree
	text, err := json.MarshalIndent(whole, "", "  ")
	return append(text, '\n'), err
}

// poolSchema returns the schema of the pools, whose tables override the tables of the configuration.
func poolSchema(tree *schema) *schema {
	one := &schema{Type: "object", Additional: none, Properties: map[string]*schema{
		"name":          {Description: "name of the pool", Type: "string"},
		"node_selector": {Description: `labels of the pool's Nodes, "key=value" or "key", separated by commas`, Type: "string"},
	}}
	for _, table := range config.PoolTables {
		one.Properties[table] = tree.Properties[table]
	}
	for _, key := range config.ClusterKeys {
		one = one.without(strings.Split(key, "."))
	}
	return &schema{Description: "configurations of Nodes with labels", Type: "array", Items: one}
}

// without returns a copy of the schema that does not allow a key.
func (s *schema) without(path []string) *schema {
	rest := *s
	rest.Properties = maps.Clone(s.Properties)
	if len(path) == 1 {
		delete(rest.Properties, path[0])
	} else {
		rest.Properties[path[0]] = s.Properties[path[0]].without(path[1:])
	}
	return &rest
}

// put adds a key's schema below the schemas of the tables that contain the key.
func (s *schema) put(path []string, leaf *schema, above string) {
	if s.Properties == nil {
		s.Properties = map[string]*schema{}
	}
	if len(path) == 1 {
		s.Properties[path[0]] = leaf
		return
	}
	here := strings.TrimPrefix(above+"."+path[0], ".")
	table := s.Properties[path[0]]
	if table == nil {
		table = &schema{Type: "object", Additional: none}
		if document(here+".x", "1")[:2] == "[[" {
			table = &schema{Type: "array", Items: table}
		}
		s.Properties[path[0]] = table
	}
	if table.Items != nil {
		table = table.Items
	}
	table.put(path[1:], leaf, here)
}

var (
	words  = regexp.MustCompile(`^[a-z-]+(, [a-z-]+)+$`)
	bounds = regexp.MustCompile(`^(\d+)(?: \([^)]*\))? to (\d+)$`)
)

// duration is the format of times in config.toml.
const duration = `^[0-9.]+(ms|s|m)$`

func leafSchema(k key) (*schema, error) {
	value, err := inJSON(k.value)
	if err != nil {
		return nil, err
	}
	s := typeSchema(k.typ)
	s.Description, s.Default = sentence(k.comment), value
	limited := s
	if s.Items != nil {
		limited = s.Items
	}
	switch match := bounds.FindStringSubmatch(k.allowed); {
	case match != nil:
		low, _ := strconv.Atoi(match[1])
		high, _ := strconv.Atoi(match[2])
		limited.Minimum, limited.Maximum = &low, &high
	case words.MatchString(k.allowed):
		limited.Enum = strings.Split(k.allowed, ", ")
	}
	return s, nil
}

func typeSchema(typ reflect.Type) *schema {
	switch {
	case typ == reflect.TypeFor[config.Duration]():
		return &schema{Type: "string", Pattern: duration}
	case typ.Kind() == reflect.String:
		return &schema{Type: "string"}
	case typ.Kind() == reflect.Bool:
		return &schema{Type: "boolean"}
	case typ.Kind() == reflect.Slice:
		return &schema{Type: "array", Items: typeSchema(typ.Elem())}
	}
	return &schema{Type: "integer"}
}

// sentence joins a comment to one line.
func sentence(comment string) string { return strings.Join(strings.Fields(comment), " ") }
