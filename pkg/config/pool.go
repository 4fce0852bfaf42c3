// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// File is the content of a config.toml with pools of Nodes.
type File struct {
	// Config is the configuration of Nodes outside the pools.
	Config Config
	Pools  []Pool
}

// Pool is the configuration of the Nodes with some labels.
type Pool struct {
	Name string
	// NodeSelector lists labels, "key=value" or "key", separated by commas. A Node of the pool has
	// all of them.
	NodeSelector string
	// Config is the complete configuration of the pool's Nodes.
	Config Config
}

// poolKey is the key of the pools in config.toml.
const poolKey = "pool"

// PoolTables are the tables that a pool may override. The manifest, the guard and the schedulers
// depend on the other tables, and do not know the labels of Nodes.
var PoolTables = []string{"compute", "detection", "dialects", "health", "memory", "node", "placement", "resize", "sharing"}

// ClusterKeys are keys of PoolTables that apply to all Nodes. A pool may not override these keys. A
// quota sums the requests of all Nodes' pods, so the requests must have the same meaning.
var ClusterKeys = []string{"dialects.native.amounts"}

// For returns the configuration of a Node with these labels, and the name of the Node's pool, "" if
// the Node is in no pool. The first pool that selects the Node applies.
func (f File) For(labels map[string]string) (cfg Config, pool string) {
	for _, p := range f.Pools {
		if p.selects(labels) {
			return p.Config, p.Name
		}
	}
	return f.Config, ""
}

// Named returns the configuration of a pool, or of the Nodes outside the pools if no pool has the
// name.
func (f File) Named(pool string) Config {
	for _, p := range f.Pools {
		if p.Name == pool {
			return p.Config
		}
	}
	return f.Config
}

func (p Pool) selects(labels map[string]string) bool {
	for label := range strings.SplitSeq(p.NodeSelector, ",") {
		if !Labelled(labels, strings.TrimSpace(label)) {
			return false
		}
	}
	return true
}

// Labelled reports whether a Node has a label, "key=value" or "key". An empty label matches any
// Node.
func Labelled(labels map[string]string, label string) bool {
	key, want, exact := strings.Cut(label, "=")
	value, has := labels[key]
	return label == "" || has && (!exact || value == want)
}

// LoadFile reads the configuration in the file at path. If the content is invalid, the error is an
// *Error.
func LoadFile(path string) (File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("read configuration: %w", err)
	}
	f, err := ParseFile(data)
	var bad *Error
	if errors.As(err, &bad) {
		bad.File = path
	}
	return f, err
}

// ParseFile parses a configuration with pools. ParseFile reports all mistakes together as an *Error.
func ParseFile(data []byte) (File, error) {
	var tree map[string]any
	if _, err := toml.Decode(string(data), &tree); err != nil {
		return File{}, &Error{Problems: []Problem{syntaxProblem(err)}}
	}
	pools, given := tree[poolKey]
	delete(tree, poolKey)
	f := File{}
	var problems []Problem
	f.Config, problems = parse(tree)
	if given {
		// A mistake outside the pools is reported once.
		var more []Problem
		f.Pools, more = parsePools(pools, tree, problems)
		problems = slices.Concat(problems, more, f.checkFit())
	}
	if len(problems) == 0 {
		return f, nil
	}
	locate(problems, string(data))
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
	return File{}, &Error{Problems: problems}
}

// checkFit returns a problem for each pool with other dialects, if the mode of scheduling is fit. The
// API server computes the conditions of a pod before the pod has a node.
func (f File) checkFit() (problems []Problem) {
	for i, p := range f.Pools {
		if f.Config.Scheduling.Fit() && !reflect.DeepEqual(p.Config.Dialects, f.Config.Dialects) {
			problems = append(problems, Problem{
				Key:     element(poolKey, i) + ".dialects",
				Message: `differs from the dialects outside the pools; allowed with scheduling.mode = "fit": the same dialects in all pools`,
			})
		}
	}
	return problems
}

// parse returns the configuration in a parsed document, and the document's problems.
func parse(tree map[string]any) (Config, []Problem) {
	cfg := Default()
	problems := decode(tree, &cfg)
	return cfg, append(problems, check(cfg, keysOf(problems))...)
}

// parsePools returns the pools in a parsed document. base is the document without the pools, and
// known are the problems of base.
func parsePools(given any, base map[string]any, known []Problem) ([]Pool, []Problem) {
	items, ok := elements(given)
	if !ok {
		return nil, []Problem{{Key: poolKey, Message: "is " + typeName(given) + "; allowed: a list of tables"}}
	}
	var pools []Pool
	var problems []Problem
	names := map[string]bool{}
	for i, item := range items {
		p, bad := parsePool(element(poolKey, i), item, base, known)
		if len(bad) == 0 && names[p.Name] {
			bad = append(bad, Problem{Key: element(poolKey, i) + ".name", Message: fmt.Sprintf("is %q for the second time; allowed: each name once", p.Name)})
		}
		names[p.Name] = true
		pools, problems = append(pools, p), append(problems, bad...)
	}
	return pools, problems
}

func parsePool(key string, item any, base map[string]any, known []Problem) (p Pool, problems []Problem) {
	bad := func(name, format string, args ...any) {
		problems = append(problems, Problem{Key: join(key, name), Message: fmt.Sprintf(format, args...)})
	}
	table, ok := item.(map[string]any)
	if !ok {
		return p, []Problem{{Key: key, Message: "is " + typeName(item) + "; allowed: a table"}}
	}
	overlay := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		switch value := table[name]; {
		case name == "name" || name == "node_selector":
		case slices.Contains(PoolTables, name):
			overlay[name] = value
		default:
			bad(name, "is no part of a pool; allowed here: name, node_selector, %s", strings.Join(PoolTables, ", "))
		}
	}
	for _, name := range ClusterKeys {
		if contains(table, name) {
			bad(name, "is no part of a pool, because the key applies to all Nodes; required: set %s outside the pools", name)
		}
	}
	p.Name, _ = table["name"].(string)
	if !dnsLabel.MatchString(p.Name) {
		bad("name", "is %q; allowed: lower-case letters, digits and '-'", p.Name)
	}
	p.NodeSelector, _ = table["node_selector"].(string)
	for label := range strings.SplitSeq(p.NodeSelector, ",") {
		if !nodeLabel.MatchString(strings.TrimSpace(label)) {
			bad("node_selector", `is %q; allowed: labels of Nodes, "key=value" or "key", separated by commas`, p.NodeSelector)
			break
		}
	}
	var own []Problem
	p.Config, own = parse(merge(base, overlay))
	for _, problem := range own {
		if !slices.ContainsFunc(known, func(k Problem) bool { return k == problem }) {
			problem.Key = join(key, problem.Key)
			problems = append(problems, problem)
		}
	}
	return p, problems
}

// contains reports whether a document contains the key with this dotted path.
func contains(tree map[string]any, path string) bool {
	name, rest, inner := strings.Cut(path, ".")
	value, found := tree[name]
	if !inner {
		return found
	}
	table, ok := value.(map[string]any)
	return ok && contains(table, rest)
}

// merge returns the tables of base with the values of overlay. A list in overlay replaces the list
// in base.
func merge(base, overlay map[string]any) map[string]any {
	merged := maps.Clone(base)
	if merged == nil {
		merged = map[string]any{}
	}
	for name, value := range overlay {
		inner, isTable := value.(map[string]any)
		before, wasTable := merged[name].(map[string]any)
		if isTable && wasTable {
			value = merge(before, inner)
		}
		merged[name] = value
	}
	return merged
}
