// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// These are the differences between the test's Prometheus and the deployed configuration: the
// scrape interval, and the range of rules and dashboards. A scrape may take a second.
const (
	scrapeInterval = "2s"
	lookBack       = "10s"
	// staleReport is the age, in seconds, of a report at which the agent counts as down. The agent
	// reports every 5 s.
	staleReport = "12"
)

// server is a Prometheus on the node, which scrapes agent and patcher.
type server struct {
	t   *testing.T
	url string
}

// sample is one value of one series.
type sample struct {
	labels map[string]string
	value  float64
	at     time.Time
}

// prometheus starts a Prometheus with our configuration, alerts and another file of rules, until
// the test ends.
func prometheus(t *testing.T, rules string) *server {
	t.Helper()
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	program, err := components.PrometheusProgram(t.Context(), source, os.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(bed.Cluster.Root(), "run", "e2e-prometheus")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"prometheus.yaml": scrapeConfig(t, source),
		"alerts.yaml":     shortened(t, file(t, source, "deploy/prometheus/alerts.yaml")),
		"dcgm.yaml":       file(t, source, "deploy/prometheus/dcgm.yaml"),
		"test.yaml":       rules,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "prometheus"), content, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &server{t, "http://" + bed.Cluster.Address + ":9090"}
	s.run(dir)
	eventually.Holds(t, patience, "Prometheus has scraped agent and patcher", func() bool {
		up, err := s.query("sum(up) == 2")
		return err == nil && len(up) == 1
	})
	return s
}

// run starts the program on the node, and ends the program when the test ends.
func (s *server) run(dir string) {
	s.t.Helper()
	const there = "/run/e2e-prometheus/"
	var out strings.Builder
	command := bed.Cluster.Command(context.Background(), there+"prometheus", "--config.file="+there+"prometheus.yaml",
		"--storage.tsdb.path="+there+"data", "--web.listen-address=0.0.0.0:9090", "--web.enable-lifecycle", "--log.level=warn")
	command.Stdout, command.Stderr = &out, &out
	if err := command.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		kill := time.AfterFunc(patience, func() {
			s.t.Errorf("Prometheus does not end within %v", patience)
			_ = command.Process.Kill()
		})
		defer kill.Stop()
		if err := s.quit(); err != nil {
			s.t.Logf("failed to stop Prometheus: %v", err) // Prometheus may have ended
		}
		_ = command.Wait()
		if s.t.Failed() {
			s.t.Logf("Prometheus logged:\n%s", out.String())
		}
		if err := os.RemoveAll(dir); err != nil {
			s.t.Error(err)
		}
	})
}

func (s *server) quit() error {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.url+"/-/quit", http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func file(t *testing.T, source, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(source, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// scrapeConfig returns our configuration with the node's addresses and shorter intervals.
func scrapeConfig(t *testing.T, source string) string {
	t.Helper()
	pods, err := bed.Client.CoreV1().Pods(testbed.Namespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=extended-resource-patcher",
	})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d patchers, want one: %v", len(pods.Items), err)
	}
	return replaced(t, addressed(t, source, bed.Cluster.Address, pods.Items[0].Status.PodIP),
		"scrape_interval: 15s", "scrape_interval: "+scrapeInterval, "evaluation_interval: 15s", "evaluation_interval: 1s",
		"[alerts.yaml]", "[alerts.yaml, dcgm.yaml, test.yaml]")
}

// addressed returns our configuration with two addresses, set by the command of
// docs/how-to/monitor.md.
func addressed(t *testing.T, source, agent, patcher string) string {
	t.Helper()
	const path = "deploy/prometheus/prometheus.yaml"
	command := regexp.MustCompile(`(?m)^sed -i .* ` + path + `$`).FindString(file(t, source, "docs/how-to/monitor.md"))
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, path), []byte(file(t, source, path)), 0o644); err != nil {
		t.Fatal(err)
	}
	run := exec.Command("sh", "-c", replaced(t, command, "IP-OF-NRI-VGPU", agent, "IP-OF-PATCHER", patcher))
	run.Dir = dir
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return file(t, dir, path)
}

// replaced replaces the first string of each pair, which must exist, by the second.
func replaced(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("there is no %q in %s", pairs[i], text)
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

var (
	heldFor   = regexp.MustCompile(`for: \d+[smh]`)
	rangeOver = regexp.MustCompile(`\[(\d+[smh]|\$__rate_interval)\]`)
)

// shortened returns the alerts with all durations shortened to seconds.
func shortened(t *testing.T, alerts string) string {
	t.Helper()
	alerts = replaced(t, alerts, "report_age_seconds > 60", "report_age_seconds > "+staleReport)
	return rangeOver.ReplaceAllString(heldFor.ReplaceAllString(alerts, "for: 1s"), "["+lookBack+"]")
}

// ask queries the API and decodes the answer's data into data.
func (s *server) ask(path string, parameters url.Values, data any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/api/v1/"+path+"?"+parameters.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", response.Status, err)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

// query returns an expression's current value. The value is a sample for each series, or all
// samples of each series in a range.
func (s *server) query(expression string) ([]sample, error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
			Values [][2]any
		}
	}
	if err := s.ask("query", url.Values{"query": {expression}}, &data); err != nil {
		return nil, fmt.Errorf("%s: %w", expression, err)
	}
	var all []sample
	for _, result := range data.Result {
		values := result.Values
		if values == nil {
			values = [][2]any{result.Value}
		}
		for _, v := range values {
			value, err := strconv.ParseFloat(fmt.Sprint(v[1]), 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", expression, err)
			}
			seconds, _ := v[0].(float64)
			all = append(all, sample{result.Metric, value, time.UnixMilli(int64(seconds * 1000))})
		}
	}
	return all, nil
}

// wait waits until an expression has a single value, and this value is want.
func (s *server) wait(expression string, want float64) {
	s.t.Helper()
	if err := eventually.Check(s.t.Context(), patience, func() error {
		got, err := s.query(expression)
		if err == nil && (len(got) != 1 || got[0].value != want) {
			err = fmt.Errorf("%v, want %v", got, want)
		}
		return err
	}); err != nil {
		s.t.Errorf("%s: %v", expression, err)
	}
}

// waitAny waits until an expression has any value.
func (s *server) waitAny(what, expression string) {
	s.t.Helper()
	if err := eventually.Check(s.t.Context(), patience, func() error {
		got, err := s.query(expression)
		if err == nil && len(got) == 0 {
			err = errors.New("no value")
		}
		return err
	}); err != nil {
		s.t.Errorf("%s: %s: %v", what, expression, err)
	}
}

// firing returns the alerts that fire.
func (s *server) firing() (map[string]bool, error) {
	var data struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	if err := s.ask("alerts", nil, &data); err != nil {
		return nil, err
	}
	firing := map[string]bool{}
	for _, alert := range data.Alerts {
		if alert.State == "firing" {
			firing[alert.Labels["alertname"]] = true
		}
	}
	return firing, nil
}

// waitAlerts waits until each of the alerts has fired, or has been inactive, at some time from now.
func (s *server) waitAlerts(fires bool, names ...string) {
	s.t.Helper()
	open := map[string]bool{}
	for _, name := range names {
		open[name] = true
	}
	if err := eventually.Check(s.t.Context(), 2*patience, func() error {
		firing, err := s.firing()
		if err != nil {
			return err
		}
		for name := range open {
			if firing[name] == fires {
				delete(open, name)
			}
		}
		if len(open) > 0 {
			return fmt.Errorf("firing is not %t of %v", fires, slices.Sorted(maps.Keys(open)))
		}
		return nil
	}); err != nil {
		s.t.Errorf("within %v: %v", 2*patience, err)
	}
}
