// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nri-vgpu/nri-vgpu/internal/cli"
)

// TestEachKeyHasATest checks that the table of tests has one row for each key of config.toml, and
// that the named tests exist.
func TestEachKeyHasATest(t *testing.T) {
	keys := map[string]bool{}
	for _, found := range regexp.MustCompile("(?m)^- \\*\\*`([^`]+)`\\*\\*").FindAllStringSubmatch(prose(t, "reference/configuration-keys.md"), -1) {
		keys[found[1]] = true
	}
	if len(keys) < 80 {
		t.Fatalf("found only %d keys", len(keys))
	}
	checkRows(t, keys, rows(t, namingTests(t, "reference/configuration-tests.md"), "| key | test |\n"))
}

// checkRows checks that the rows name a test for each knob, and for nothing else.
func checkRows(t *testing.T, knobs map[string]bool, rows []string) {
	t.Helper()
	row := regexp.MustCompile("^\\| `([^`]+)` \\| \\[`Test\\w+`\\]\\([^)]+\\) \\|$")
	for _, line := range rows {
		cells := row.FindStringSubmatch(strings.TrimSpace(line))
		if cells == nil {
			t.Errorf("the row %q names no knob and test", line)
			continue
		}
		if !knobs[cells[1]] {
			t.Errorf("%s does not exist, or has two rows", cells[1])
		}
		delete(knobs, cells[1])
	}
	for knob := range knobs {
		t.Errorf("the table has no row for %s", knob)
	}
}

// TestEachStepHasATest checks that each step of the other systems' READMEs names a test.
func TestEachStepHasATest(t *testing.T) {
	for _, line := range rows(t, namingTests(t, "reference/compatibility.md"), "| README | step | with nri-vgpu | test |\n") {
		if strings.HasPrefix(line, "| ") && !strings.HasSuffix(line, "_test.go) |") {
			t.Errorf("this step names no test: %s", line)
		}
	}
}

// TestEachValueHasATest checks that the table of values has one row for each value of the chart.
// TestEachKeyHasATest checks the value "config", and "global" belongs to helm.
func TestEachValueHasATest(t *testing.T) {
	type schema struct{ Properties map[string]json.RawMessage }
	values := map[string]bool{}
	var collect func(path string, raw []byte)
	collect = func(path string, raw []byte) {
		var s schema
		if err := json.Unmarshal(raw, &s); err != nil {
			t.Fatal(err)
		}
		if len(s.Properties) == 0 {
			values[path] = true
		}
		for name, inner := range s.Properties {
			if path != "" || name != "config" && name != "global" {
				collect(strings.TrimPrefix(path+"."+name, "."), inner)
			}
		}
	}
	content, err := os.ReadFile("../deploy/chart/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	collect("", content)
	checkRows(t, values, rows(t, namingTests(t, "reference/value-tests.md"), "| value | test |\n"))
}

// TestEachFlagHasATest checks that each flag of the programs has a row with a test. A flag that no
// test sets has a row with the reason.
func TestEachFlagHasATest(t *testing.T) {
	flags := clientFlags()
	addDaemonFlags(t, flags)
	if len(flags) < 70 {
		t.Fatalf("found only %d flags", len(flags))
	}
	text := namingTests(t, "reference/value-tests.md")
	for _, line := range rows(t, text, "| flag | reason |\n") {
		_, rest, _ := strings.Cut(line, "`")
		flag, _, _ := strings.Cut(rest, "`")
		if flag != "" && !flags[flag] {
			t.Errorf("%s does not exist", flag)
		}
		delete(flags, flag)
	}
	checkRows(t, flags, rows(t, text, "| flag | test |\n"))
}

// TestEachCommandIsDocumented checks that the reference names each command of vgpuctl, kubectl's plugin
// and mgctl.
func TestEachCommandIsDocumented(t *testing.T) {
	text := prose(t, "reference/cli.md")
	n := 0
	var check func(path string, c *cobra.Command)
	check = func(path string, c *cobra.Command) {
		for _, inner := range c.Commands() {
			if !inner.Hidden {
				check(path+" "+inner.Name(), inner)
			}
		}
		if c.HasSubCommands() {
			return
		}
		n++
		if !regexp.MustCompile("`" + regexp.QuoteMeta(path) + "[` ]").MatchString(text) {
			t.Errorf("reference/cli.md does not name %q", path)
		}
	}
	for _, root := range cli.Commands() {
		check(root.DisplayName(), root)
	}
	if n < 25 {
		t.Errorf("found only %d commands", n)
	}
}

// clientFlags returns the flags of vgpuctl, kubectl's plugin and mgctl, without the flags that
// every command has or that client-go defines.
func clientFlags() map[string]bool {
	known := pflag.NewFlagSet("", pflag.ContinueOnError)
	clientcmd.BindOverrideFlags(&clientcmd.ConfigOverrides{}, known, clientcmd.RecommendedConfigOverrideFlags(""))
	flags := map[string]bool{}
	var collect func(program string, c *cobra.Command)
	collect = func(program string, c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && f.Name != "version" && (program == "mgctl" || known.Lookup(f.Name) == nil) {
				flags[program+" --"+f.Name] = true
			}
		})
		for _, inner := range c.Commands() {
			collect(program, inner)
		}
	}
	for _, root := range cli.Commands() {
		collect(root.DisplayName(), root)
	}
	return flags
}

// addDaemonFlags adds the flags that the sources of the node's programs define.
func addDaemonFlags(t *testing.T, flags map[string]bool) {
	t.Helper()
	for _, program := range []string{"nri-vgpu", "extended-resource-patcher", "nri-vgpu-view"} {
		sources, err := filepath.Glob(filepath.Join("../cmd", program, "*.go"))
		if err != nil || len(sources) == 0 {
			t.Fatalf("sources of %s: %v, %v", program, sources, err)
		}
		for _, source := range sources {
			content, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range regexp.MustCompile(`\.\w+Var\(&[\w.]+, "([^"]+)"`).FindAllSubmatch(content, -1) {
				flags[program+" --"+string(found[1])] = true
			}
		}
	}
}
