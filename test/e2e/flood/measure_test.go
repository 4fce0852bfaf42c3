// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
)

// start contains the time from a normal pod's creation until the pod ran. In the API server's whole
// seconds, start also contains the times until the sandbox existed and until the container had
// started.
type start struct{ took, sandbox, container time.Duration }

func newStart(pod *corev1.Pod, took time.Duration) start {
	s, created := start{took: took}, pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue {
			s.sandbox = c.LastTransitionTime.Sub(created)
		}
	}
	if running := pod.Status.ContainerStatuses[0].State.Running; running != nil {
		s.container = running.StartedAt.Sub(created)
	}
	return s
}

// result is the measurement beside a crowd.
type result struct {
	name string
	// crowd is the number of the crowd's pods. granted is the number of started containers, and
	// refused is the number of containers that wait after a refusal.
	crowd, granted, refused int
	apart, together         []start
	took                    time.Duration
	// spent is the cost for each program during the measurement.
	spent readings
}

func (r result) longest() time.Duration {
	return max(percentile(r.apart, 100), percentile(r.together, 100))
}

func (r result) median() time.Duration { return percentile(slices.Concat(r.apart, r.together), 50) }

func percentile(starts []start, percent int) time.Duration {
	took := make([]time.Duration, len(starts))
	for i, s := range starts {
		took[i] = s.took
	}
	slices.Sort(took)
	return took[(len(took)-1)*percent/100]
}

func (r result) String() string {
	line := fmt.Sprintf("%s: %d other pods, %d containers started, %d refused; %d normal pods one after another p50 %.1f s, max %.1f s; %d at once p50 %.1f s, max %.1f s; %.0f s",
		r.name, r.crowd, r.granted, r.refused, len(r.apart), percentile(r.apart, 50).Seconds(), percentile(r.apart, 100).Seconds(),
		len(r.together), percentile(r.together, 50).Seconds(), percentile(r.together, 100).Seconds(), r.took.Seconds())
	for _, s := range slices.Concat(r.apart, r.together) {
		line += fmt.Sprintf("\n  %.1f s (sandbox %.0f s, container %.0f s)", s.took.Seconds(), s.sandbox.Seconds(), s.container.Seconds())
	}
	keys := make([]string, 0, len(r.spent))
	for key := range r.spent {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		v := r.spent[key]
		if v.count > 0 {
			line += fmt.Sprintf("\n  %s: %d, mean %.2f ms, %.1f %% over 100 ms", key, v.count, 1000*v.seconds/float64(v.count), 100*(1-float64(v.quick)/float64(v.count)))
		} else if v.seconds > 0 {
			line += fmt.Sprintf("\n  %s: %.1f s", key, v.seconds)
		}
	}
	return line
}

// reading is the amount of time spent on an activity. For calls, count is the number of all calls.
// quick is the number of calls that took at most a tenth of a second.
type reading struct {
	seconds      float64
	count, quick uint64
}

type readings map[string]reading

func (r readings) since(before readings) readings {
	spent := readings{}
	for key, now := range r {
		was := before[key]
		spent[key] = reading{now.seconds - was.seconds, now.count - was.count, now.quick - was.quick}
	}
	return spent
}

// read reads the durations of calls from the agent's and kubelet's metrics, and each program's
// processor time.
func (s *suite) read() readings {
	s.Helper()
	all := readings{}
	for name, family := range s.families("agent") {
		if name == "nri_vgpu_handler_duration_seconds" {
			all.add("handler", family)
		}
	}
	for name, family := range s.families("kubelet") {
		switch name {
		case "kubelet_runtime_operations_duration_seconds", "kubelet_pod_worker_duration_seconds", relists + "_duration_seconds":
			all.add(strings.TrimSuffix(name, "_duration_seconds"), family)
		}
	}
	for _, component := range []string{cluster.Containerd, cluster.Kubelet, cluster.APIServer, cluster.Etcd, cluster.Scheduler, cluster.ControllerManager} {
		pid, err := s.bed.Cluster.Pid(s.Context(), component)
		if err != nil {
			s.Fatal(err)
		}
		all["processor, "+component] = reading{seconds: s.processor(fmt.Sprintf("/proc/%d/stat", pid), 13, 14)}
	}
	agent, err := s.bed.Metric(s.Context(), "process_cpu_seconds_total", nil)
	if err != nil {
		s.Fatal(err)
	}
	all["processor, agent"] = reading{seconds: agent}
	all["processor, all programs of the machine"] = reading{seconds: s.processor("/proc/stat", 1, 2, 3)}
	all["processor, none"] = reading{seconds: s.processor("/proc/stat", 4, 5)}
	return all
}

// relists is the metric of kubelet's listings of all containers.
const relists = "kubelet_pleg_relist"

// ticks is the number of the kernel's clock ticks per second.
const ticks = 100

// processor returns the sum of fields of the first line of a file.
func (s *suite) processor(path string, fields ...int) (seconds float64) {
	s.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		s.Fatal(err)
	}
	line, _, _ := strings.Cut(string(content), "\n")
	values := strings.Fields(line)
	for _, field := range fields {
		n, err := strconv.ParseUint(values[field], 10, 64)
		if err != nil {
			s.Fatalf("%s: %v", path, err)
		}
		seconds += float64(n) / ticks
	}
	return seconds
}

func (r readings) add(name string, family *dto.MetricFamily) {
	for _, m := range family.GetMetric() {
		key := name
		for _, label := range m.GetLabel() {
			key += " " + label.GetValue()
		}
		h := m.GetHistogram()
		v := reading{seconds: h.GetSampleSum(), count: h.GetSampleCount()}
		for _, b := range h.GetBucket() {
			if b.GetUpperBound() <= 0.1 {
				v.quick = b.GetCumulativeCount()
			}
		}
		r[key] = v
	}
}

// families returns the metrics of the agent or of kubelet.
func (s *suite) families(of string) map[string]*dto.MetricFamily {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 30*time.Second)
	defer cancel()
	var body []byte
	var err error
	if of == "agent" {
		body, err = s.get(ctx, "http://"+s.bed.Cluster.Address+":9394/metrics")
	} else {
		body, err = s.bed.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", s.bed.Cluster.NodeName, "proxy/metrics").DoRaw(ctx)
	}
	if err != nil {
		s.Fatalf("read the metrics of the %s: %v", of, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	if err != nil {
		s.Fatalf("read the metrics of the %s: %v", of, err)
	}
	return families
}

func (s *suite) get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// judge compares a crowd that requests our resources with a crowd that requests other resources. On
// two processors any crowd keeps kubelet and containerd busy, so the load alone is not a measure.
func (s *suite) judge(control, hostile result) {
	s.Helper()
	if hostile.granted == 0 || hostile.refused == 0 {
		s.Errorf("%d containers of the crowd started and %d were refused: the test tests nothing", hostile.granted, hostile.refused)
	}
	if got := hostile.longest(); got >= patience {
		s.Errorf("a normal pod did not start within %v beside a crowd with requests", patience)
	}
	if got, most := hostile.median(), control.median()+later; got > most {
		s.Errorf("half of the normal pods took more than %v to start beside a crowd with requests, and %v beside a crowd without requests", got, control.median())
	}
	// The time at which kubelet notices a started container is random, because kubelet lists all
	// containers repeatedly, and each list takes some seconds.
	relist := hostile.spent[relists]
	look := time.Duration(relist.seconds / float64(max(relist.count, 1)) * float64(time.Second))
	if got, most := hostile.longest(), control.longest()+look+later; got > most {
		s.Errorf("a normal pod took %v to start beside a crowd with requests, at most %v beside a crowd without requests; kubelet's lists took %v",
			got, control.longest(), look)
	}
	for _, outcome := range []string{"granted", "refused"} {
		if h := hostile.spent["handler CreateContainer "+outcome]; h.count == 0 || float64(h.quick) < 0.99*float64(h.count) {
			s.Errorf("for %d containers that were %s, the handler answered %d within 100 ms", h.count, outcome, h.quick)
		}
	}
}
