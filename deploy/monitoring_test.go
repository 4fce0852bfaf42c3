// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

var (
	seriesName = regexp.MustCompile(`\bnri_vgpu_\w+`)
	documented = regexp.MustCompile("(?m)^\\| `(nri_vgpu_\\w+)` \\|")
)

// checkSeries checks that each series in an expression exists.
func checkSeries(t *testing.T, where, expression string) {
	t.Helper()
	known := map[string]bool{}
	for _, row := range documented.FindAllStringSubmatch(read(t, "../docs/reference/metrics.md"), -1) {
		known[row[1]] = true
	}
	for _, name := range seriesName.FindAllString(expression, -1) {
		if !known[name] && !known[strings.TrimSuffix(name, "_bucket")] {
			t.Errorf("%s: there is no series %s", where, name)
		}
	}
}

// TestAlerts checks that every alert uses existing series, waits before it fires, describes the
// problem, and links to a fix.
func TestAlerts(t *testing.T) {
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, "prometheus/alerts.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	runbooks := read(t, "../docs/how-to/alerts.md")
	const page = "https://github.com/nri-vgpu/nri-vgpu/blob/main/docs/how-to/alerts.md#"
	for _, rule := range rules.Groups[0].Rules {
		checkSeries(t, rule.Alert, rule.Expr)
		if rule.For == "" || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
			t.Errorf("%s lacks for, summary or description", rule.Alert)
		}
		switch rule.Labels["severity"] {
		case "critical", "warning", "info":
		default:
			t.Errorf("%s is %q", rule.Alert, rule.Labels["severity"])
		}
		if rule.Annotations["runbook_url"] != page+strings.ToLower(rule.Alert) || !strings.Contains(runbooks, "\n## "+rule.Alert+"\n") {
			t.Errorf("docs/how-to/alerts.md has no instructions for %s at the alert's runbook_url", rule.Alert)
		}
	}
	if n := len(rules.Groups[0].Rules); n != strings.Count(runbooks, "\n## VGPU") || n < 8 {
		t.Errorf("%d alerts; docs/how-to/alerts.md has another number of alerts", n)
	}
}

// TestDCGMRules checks that every rule uses existing series, and that the documents list the series
// that the rules record.
func TestDCGMRules(t *testing.T) {
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct{ Record, Expr string }
		}
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, "prometheus/dcgm.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	guide := read(t, "../docs/how-to/monitor.md")
	for _, rule := range rules.Groups[0].Rules {
		checkSeries(t, rule.Record, rule.Expr)
		if rule.Record == "" || !strings.Contains(guide, "\n| `"+rule.Record+"` | ") {
			t.Errorf("docs/how-to/monitor.md does not list %q", rule.Record)
		}
	}
	if n := len(rules.Groups[0].Rules); n < 3 {
		t.Errorf("only %d rules", n)
	}
}

// TestDashboards checks that every dashboard uses existing series, queries the selected data
// source, and has a description.
func TestDashboards(t *testing.T) {
	paths, err := filepath.Glob("grafana/*.json")
	if err != nil || len(paths) != 4 {
		t.Fatalf("%v, %v", paths, err)
	}
	uids := map[string]bool{}
	for _, path := range paths {
		var dashboard struct {
			UID, Title, Description string
			Panels                  []struct {
				ID         int
				Title      string
				Datasource struct{ UID string }
				GridPos    struct{ X, Y, W, H int }
				Targets    []struct{ Expr, RefID string }
			}
		}
		if err := json.Unmarshal([]byte(read(t, path)), &dashboard); err != nil {
			t.Fatal(err)
		}
		if uids[dashboard.UID] || dashboard.UID == "" || dashboard.Title == "" || dashboard.Description == "" {
			t.Errorf("%s: %q has no UID of its own, no title or no description", path, dashboard.UID)
		}
		uids[dashboard.UID] = true
		for i, panel := range dashboard.Panels {
			if panel.ID != i+1 || panel.Title == "" || panel.Datasource.UID != "${datasource}" || len(panel.Targets) == 0 {
				t.Errorf("%s: panel %d (%q) has another id, no title, no query or a data source of its own", path, panel.ID, panel.Title)
			}
			if panel.GridPos.X+panel.GridPos.W > 24 || panel.GridPos.H == 0 {
				t.Errorf("%s: %q does not fit", path, panel.Title)
			}
			for _, target := range panel.Targets {
				checkSeries(t, path+": "+panel.Title, target.Expr)
			}
		}
	}
}
