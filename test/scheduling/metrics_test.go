// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

var (
	seriesName = regexp.MustCompile(`\b(scheduler|leader_election)_\w+`)
	forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)
)

// TestMetricsOfTheDashboard checks that the scheduler serves every series that its dashboard shows.
// The scheduler measures plugins for one of ten pods, so the test creates pods until the series
// exist.
func TestMetricsOfTheDashboard(t *testing.T) {
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	dashboard, err := os.ReadFile(filepath.Join(source, "deploy", "grafana", "scheduling.json"))
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]bool{}
	for _, name := range seriesName.FindAllString(string(dashboard), -1) {
		wanted[name] = true
	}
	if len(wanted) < 8 {
		t.Fatalf("the dashboard shows only %v", wanted)
	}
	create(t, podOf("waits", gpuMiB+1))
	for i := range 100 {
		name := fmt.Sprintf("measured-%d", i)
		create(t, podOf(name, 1))
		running(t, name)
		remove(t, name)
		served := metricsOfLeader(t)
		for series := range wanted {
			if regexp.MustCompile(`(?m)^` + series + `[{ ]`).MatchString(served) {
				delete(wanted, series)
			}
		}
		if len(wanted) == 0 {
			break
		}
	}
	if len(wanted) > 0 {
		t.Errorf("the leader does not serve %v", wanted)
	}
	remove(t, "waits")
}

// metricsOfLeader reads the metrics of the scheduler's leader as the administrator.
func metricsOfLeader(t *testing.T) string {
	t.Helper()
	lease, err := beds[0].Client.CoordinationV1().Leases(testbed.Namespace).Get(t.Context(), scheduler, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	leader, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	forward := exec.CommandContext(t.Context(), beds[0].Cluster.Kubectl(), "port-forward", "-n", testbed.Namespace, "pod/"+leader, ":10259")
	forward.Env = beds[0].Plugins()
	out, err := forward.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = forward.Process.Kill()
		_ = forward.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	found := forwarding.FindStringSubmatch(line)
	if err != nil || found == nil {
		t.Fatalf("forward a port: %q, %v", line, err)
	}
	return get(t, "https://"+found[1]+"/metrics")
}

// get requests a page of the scheduler with the administrator's certificate. The scheduler has a
// self-signed certificate.
func get(t *testing.T, url string) string {
	t.Helper()
	config := beds[0].Cluster.RestConfig()
	config.Insecure, config.CAData, config.CAFile = true, nil, ""
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %s", url, response.Status, err, page)
	}
	return string(page)
}
