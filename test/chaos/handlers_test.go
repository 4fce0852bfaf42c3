package chaos

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// handlerBound is how long agent and guard together may take for a request.
const handlerBound = time.Second

// handlers measures how long agent and guard keep the runtime waiting. The runtime asks
// its plugins one after another: the test has one before the agent and one behind the guard.
type handlers struct {
	stops []stub.Stub

	mu    sync.Mutex
	open  map[string]opened
	spent []spent
}

// opened is a request on its way between the two plugins.
type opened struct {
	at    time.Time
	where string
}

// spent is what a request took.
type spent struct {
	request, where string
	took           time.Duration
	refused        bool
}

func (s spent) String() string {
	return fmt.Sprintf("%v for %s of %s", s.took.Round(time.Millisecond), s.request, s.where)
}

// watchHandlers joins the runtime's plugins until stop is called. containerd must not be
// restarted meanwhile.
func (w *world) watchHandlers() *handlers {
	w.Helper()
	h := &handlers{open: map[string]opened{}}
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

func (h *handlers) begin(request, id, where string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[request+" "+id] = opened{time.Now(), where}
}

// end notes that a request has passed agent and guard, or that it was refused.
func (h *handlers) end(request, id string, refused bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := request + " " + id
	if begun, ok := h.open[key]; ok {
		delete(h.open, key)
		h.spent = append(h.spent, spent{request, begun.where, time.Since(begun.at), refused})
	}
}

// refused ends what was asked of a container and did not pass: the runtime then stops and
// removes it. That comes later than the refusal, so that it is taken to be slower than it was.
func (h *handlers) refused(id string) {
	for _, request := range []string{"CreateContainer", "StartContainer"} {
		h.end(request, id, true)
	}
}

// take returns what was spent since the last call, and requests without an end.
func (h *handlers) take() []spent {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.spent
	h.spent = nil
	for key, begun := range h.open {
		if took := time.Since(begun.at); took > handlerBound {
			delete(h.open, key)
			all = append(all, spent{key + ", which did not end", begun.where, took, true})
		}
	}
	return all
}

func where(pod *api.PodSandbox, container *api.Container) string {
	return pod.GetNamespace() + "/" + pod.GetName() + "/" + container.GetName()
}

// firstPlugin is asked before the agent.
type firstPlugin struct{ *handlers }

func (f *firstPlugin) CreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	f.begin("CreateContainer", container.GetId(), where(pod, container))
	return nil, nil, nil
}

func (f *firstPlugin) StartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	f.begin("StartContainer", container.GetId(), where(pod, container))
	return nil
}

func (f *firstPlugin) PostStartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	f.begin("PostStartContainer", container.GetId(), where(pod, container))
	return nil
}

func (f *firstPlugin) StopContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	f.handlers.refused(container.GetId())
	f.begin("StopContainer", container.GetId(), where(pod, container))
	return nil, nil
}

func (f *firstPlugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	f.handlers.refused(container.GetId())
	f.begin("RemoveContainer", container.GetId(), where(pod, container))
	return nil
}

func (f *firstPlugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	f.begin("StopPodSandbox", pod.GetId(), where(pod, nil))
	return nil
}

func (f *firstPlugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	f.begin("RemovePodSandbox", pod.GetId(), where(pod, nil))
	return nil
}

// lastPlugin is asked behind the guard, which registers before any other plugin of its
// index: the runtime keeps that order.
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

// What the stub does not recognise it leaves out in silence.
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

// silent drops what the stubs log.
type silent struct{}

func (silent) Debugf(context.Context, string, ...any) {}
func (silent) Infof(context.Context, string, ...any)  {}
func (silent) Warnf(context.Context, string, ...any)  {}
func (silent) Errorf(context.Context, string, ...any) {}
