package e2e

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// metrics are the agent's, from its port on the node.
func metrics(t *testing.T) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+bed.Cluster.Address+":9394/metrics", http.NoBody)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// waitSaid waits until the agent's metrics have a line.
func waitSaid(t *testing.T, line string, within time.Duration) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		body, err := metrics(t)
		if err == nil && strings.Contains("\n"+body, "\n"+line+"\n") {
			return
		}
		if err != nil {
			last = err.Error()
		}
	}
	t.Fatalf("the agent does not say %q within %v (%s)", line, within, last)
}

// What a container uses is among the agent's metrics from its creation on, as the
// oracle knows it.
func TestMetricsTellWhatContainersUse(t *testing.T) {
	create(t, testbed.Pod("idle", testbed.Container("main", testbed.Limits{metagpu: 20}, "sleep", "3600")))
	busy := spinning(t, "busy", 40)
	running(t, "idle")
	of := func(pod, series string) float64 {
		t.Helper()
		value, err := bed.Metric(t.Context(), "nri_vgpu_container_"+series, map[string]string{"pod": pod, "container": "main"})
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	body, err := metrics(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, series := range []string{"used_memory_bytes", "utilisation_ratio", "gpu_seconds_total", "throttled_seconds_total", "launches_total", "refused_allocations_total"} {
		if !strings.Contains(body, "nri_vgpu_container_"+series+`{container="main",namespace="default",pod="idle",`) {
			t.Errorf("a container that has not touched its GPU has no %s", series)
		}
	}
	eventually(t, "it uses its GPU", func() bool { had, _, err := bed.GPUTime(busy); return err == nil && had > time.Second/2 })
	before, from, err := bed.GPUTime(busy)
	counted := of("busy", "gpu_seconds_total")
	if err != nil {
		t.Fatal(err)
	}
	var had, at time.Duration
	eventually(t, "five seconds have passed", func() bool { had, at, err = bed.GPUTime(busy); return err == nil && at-from > 5*time.Second })
	told := 100 * (of("busy", "gpu_seconds_total") - counted) / (at - from).Seconds()
	if real := 100 * (had - before).Seconds() / (at - from).Seconds(); !within(told, real) {
		t.Errorf("it had %.2f %% of the GPU's time, and the metric says %.2f", real, told)
	}
	if _, bytes := onlyGPU(t, held(t, busy)); of("busy", "used_memory_bytes") != float64(bytes) || of("busy", "accounted_memory_bytes") != float64(bytes) {
		t.Errorf("it holds %d bytes, the driver's figure is %.0f and its own %.0f", bytes, of("busy", "used_memory_bytes"), of("busy", "accounted_memory_bytes"))
	}
	if of("busy", "throttled_seconds_total") == 0 || of("busy", "launches_total") == 0 || of("idle", "launches_total") != 0 {
		t.Error("a container that is held back is not said to be, or one that does nothing is said to do something")
	}
	var result testbed.Fill
	if err := bed.Exec(t.Context(), "idle", &result, "fill"); err != nil {
		t.Fatal(err)
	}
	if got := of("idle", "refused_allocations_total"); got == 0 || got != float64(result.Refusals) {
		t.Errorf("%.0f refused allocations are counted, of %d", got, result.Refusals)
	}
}
