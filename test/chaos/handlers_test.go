// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// handlerBound bounds the time of agent and guard together for a request.
const handlerBound = time.Second

// handlers measures the time for which the runtime waits for agent and guard. The runtime calls its
// plugins one after another. The test registers one plugin before the agent and one plugin behind
// the guard.
type handlers struct {
	stops []stub.Stub
	log   string // containerd's log
	read  int64  // bytes of the log that were read

	mu    sync.Mutex
	open  map[string]opened
	spent []spent
	heard time.Time // time of the last request
}

// opened is a request on its way between the two plugins.
type opened struct {
	at    time.Time
	where string
	line  string // identifies the request in containerd's log
}

// spent is the duration of a request.
type spent struct {
	request string
	took    time.Duration
	refused bool
	opened
}

func (s spent) String() string {
	return fmt.Sprintf("%v for %s of %s", s.took.Round(time.Millisecond), s.request, s.where)
}

// watchHandlers registers the test's plugins until the caller calls stop. The test must not restart
// containerd meanwhile.
func (w *world) watchHandlers() *handlers {
	w.Helper()
	h := &handlers{open: map[string]opened{}, log: filepath.Join(w.Cluster.StateDir, "logs/containerd.log")}
	socket := filepath.Join(w.Cluster.Root(), "run/nri/nri.sock")
	for _, one := range []struct {
		index  string
		plugin any
	}{{"00", &firstPlugin{h}}, {"99", &lastPlugin{h}}} {
		st, err := stub.New(one.plugin, stub.WithPluginName("chaos"), stub.WithPluginIdx(one.index),
			stub.WithSocketPath(socket), stub.WithLogger(silent{}))
		if err == nil {
			err = st.Start(context.Background())
		}
		if err != nil {
			w.Fatalf("measure the handlers: %v", err)
		}
		h.stops = append(h.stops, st)
	}
	return h
}

func (h *handlers) stop() {
	for _, st := range h.stops {
		st.Stop()
	}
}

func (h *handlers) begin(request, id, where, line string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = time.Now()
	h.open[request+" "+id] = opened{time.Now(), where, line}
}

// end records that a request has passed agent and guard, or was refused.
func (h *handlers) end(request, id string, refused bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := request + " " + id
	if begun, ok := h.open[key]; ok {
		delete(h.open, key)
		h.spent = append(h.spent, spent{request, time.Since(begun.at), refused, begun})
	}
}

// refused ends the requests for a container that did not pass. The runtime then stops and removes
// the container. The removal comes later than the refusal, so correct finds the time at which
// containerd received the refusal.
func (h *handlers) refused(id string) {
	for _, request := range []string{"CreateContainer", "StartContainer"} {
		h.end(request, id, true)
	}
}

// idle returns an error while the runtime sends requests, because kubelet may still be working on
// deleted pods.
func (h *handlers) idle() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if since := time.Since(h.heard); since < time.Second {
		return fmt.Errorf("the runtime created, stopped or removed a container %v ago", since)
	}
	return nil
}

// take returns the durations since the last call, and the requests that have not ended.
func (h *handlers) take() []spent {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.correct(h.spent)
	h.spent = nil
	for key, begun := range h.open {
		if took := time.Since(begun.at); took > handlerBound {
			delete(h.open, key)
			all = append(all, spent{key + ", which did not end", took, true, begun})
		}
	}
	return all
}

// failure matches a line of containerd's log about a container that was not created or not started.
var failure = regexp.MustCompile(`^time="([^"]+)" level=error msg="(CreateContainer within sandbox \\"[0-9a-f]+\\" for name:\\"[^"\\]+\\"|StartContainer for \\"[0-9a-f]+\\") failed"`)

// correct sets the duration of refused requests to the time until containerd logged the refusal.
func (h *handlers) correct(all []spent) []spent {
	file, err := os.Open(h.log)
	if err != nil {
		return all
	}
	defer file.Close()
	_, _ = file.Seek(h.read, io.SeekStart)
	content, _ := io.ReadAll(file)
	h.read += int64(len(content))
	failed := map[string][]time.Time{}
	for line := range strings.Lines(string(content)) {
		if found := failure.FindStringSubmatch(line); found != nil {
			if at, err := time.Parse(time.RFC3339Nano, found[1]); err == nil {
				failed[found[2]] = append(failed[found[2]], at)
			}
		}
	}
	for i := range all {
		for _, at := range failed[all[i].line] {
			if took := at.Sub(all[i].at); all[i].refused && took > 0 {
				all[i].took = min(all[i].took, took)
			}
		}
	}
	return all
}

// created and started return the beginnings of containerd's log lines about these requests.
func created(pod *api.PodSandbox, container *api.Container) string {
	return fmt.Sprintf(`CreateContainer within sandbox \"%s\" for name:\"%s\"`, pod.GetId(), container.GetName())
}

func started(container *api.Container) string {
	return fmt.Sprintf(`StartContainer for \"%s\"`, container.GetId())
}

func where(pod *api.PodSandbox, container *api.Container) string {
	return pod.GetNamespace() + "/" + pod.GetName() + "/" + container.GetName()
}

// firstPlugin comes before the agent.
type firstPlugin struct{ *handlers }

func (f *firstPlugin) CreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	f.begin("CreateContainer", container.GetId(), where(pod, container), created(pod, container))
	return nil, nil, nil
}

func (f *firstPlugin) StartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	f.begin("StartContainer", container.GetId(), where(pod, container), started(container))
	return nil
}

func (f *firstPlugin) PostStartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	f.begin("PostStartContainer", container.GetId(), where(pod, container), "")
	return nil
}

func (f *firstPlugin) StopContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	f.refused(container.GetId())
	f.begin("StopContainer", container.GetId(), where(pod, container), "")
	return nil, nil
}

func (f *firstPlugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	f.refused(container.GetId())
	f.begin("RemoveContainer", container.GetId(), where(pod, container), "")
	return nil
}

func (f *firstPlugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	f.begin("StopPodSandbox", pod.GetId(), where(pod, nil), "")
	return nil
}

func (f *firstPlugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	f.begin("RemovePodSandbox", pod.GetId(), where(pod, nil), "")
	return nil
}

// lastPlugin comes behind the guard. The guard registers before any other plugin of its index, and
// the runtime keeps this order.
type lastPlugin struct{ *handlers }

func (l *lastPlugin) CreateContainer(_ context.Context, _ *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	l.end("CreateContainer", container.GetId(), false)
	return nil, nil, nil
}

func (l *lastPlugin) StartContainer(_ context.Context, _ *api.PodSandbox, container *api.Container) error {
	l.end("StartContainer", container.GetId(), false)
	return nil
}

func (l *lastPlugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, container *api.Container) error {
	l.end("PostStartContainer", container.GetId(), false)
	return nil
}

func (l *lastPlugin) StopContainer(_ context.Context, _ *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	l.end("StopContainer", container.GetId(), false)
	return nil, nil
}

func (l *lastPlugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, container *api.Container) error {
	l.end("RemoveContainer", container.GetId(), false)
	return nil
}

func (l *lastPlugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	l.end("StopPodSandbox", pod.GetId(), false)
	return nil
}

func (l *lastPlugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	l.end("RemovePodSandbox", pod.GetId(), false)
	return nil
}

// The stub silently ignores methods that it does not recognise.
var (
	_ everything = &firstPlugin{}
	_ everything = &lastPlugin{}
)

type everything interface {
	stub.CreateContainerInterface
	stub.StartContainerInterface
	stub.PostStartContainerInterface
	stub.StopContainerInterface
	stub.RemoveContainerInterface
	stub.StopPodInterface
	stub.RemovePodInterface
}

// silent drops the stubs' logs.
type silent struct{}

func (silent) Debugf(context.Context, string, ...any) {}
func (silent) Infof(context.Context, string, ...any)  {}
func (silent) Warnf(context.Context, string, ...any)  {}
func (silent) Errorf(context.Context, string, ...any) {}
