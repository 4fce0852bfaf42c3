package ctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// Holder is who has limits: a container of Kubernetes or a group of runs.
type Holder struct {
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	Container string `json:"container,omitempty"`
	// Group is the name of a group of runs.
	Group string `json:"group,omitempty"`
	// Dir is where the pages are.
	Dir  string      `json:"dir"`
	GPUs []GPUStatus `json:"gpus"`
}

// GPUStatus is the limit and the use of one GPU, as the holder's processes
// count it.
type GPUStatus struct {
	UUID             string `json:"uuid"`
	MemoryLimitBytes uint64 `json:"memoryLimitBytes"`
	// MemoryUsedBytes includes the contexts.
	MemoryUsedBytes    uint64 `json:"memoryUsedBytes"`
	ContextMemoryBytes uint64 `json:"contextMemoryBytes"`
	// ComputeLimitPPM is left out where time has no limit.
	ComputeLimitPPM uint32 `json:"computeLimitPPM,omitempty"`
	// ComputeMaximumPPM, where the limit is a guarantee, is what the holder may have of
	// what others leave idle.
	ComputeMaximumPPM uint32          `json:"computeMaximumPPM,omitempty"`
	GPUTimeSeconds    float64         `json:"gpuTimeSeconds"`
	Refusals          uint64          `json:"refusals"`
	Processes         []ProcessStatus `json:"processes"`
}

// ProcessStatus is the use of one GPU by one process.
type ProcessStatus struct {
	// PID is in the holder's pid namespace.
	PID             uint32 `json:"pid"`
	Name            string `json:"name"`
	MemoryUsedBytes uint64 `json:"memoryUsedBytes"`
	MemoryPeakBytes uint64 `json:"memoryPeakBytes"`
}

// Places are where to look for limits.
type Places struct {
	// RunDir is /run/nri-vgpu: of a container or of a node.
	RunDir string
	// RunPages is $NRI_VGPU_DIR, "" outside a run.
	RunPages string
	// Groups is this user's directory of groups.
	Groups string
}

// Status is what has limits, as far as it can be seen from here: in a
// container or a run that one, else all containers of the node and all groups
// of this user. What cannot be read is left out and named in the error.
func Status(p Places) ([]Holder, error) {
	if _, err := os.Lstat(filepath.Join(p.RunDir, limits.LimitsFile)); err == nil {
		return one(Holder{Dir: p.RunDir})
	}
	if p.RunPages != "" {
		return one(Holder{Group: filepath.Base(p.RunPages), Dir: p.RunPages})
	}
	var all []Holder
	var errs []error
	candidates, err := containersIn(filepath.Join(p.RunDir, "containers"))
	errs = append(errs, err)
	groups, err := groupsIn(p.Groups)
	errs = append(errs, err)
	for _, h := range append(candidates, groups...) {
		switch err := h.read(); {
		case errors.Is(err, fs.ErrNotExist): // it ended meanwhile, or is yet to begin
		case err != nil:
			errs = append(errs, err)
		default:
			all = append(all, h)
		}
	}
	return all, errors.Join(errs...)
}

func one(h Holder) ([]Holder, error) {
	if err := h.read(); err != nil {
		return nil, err
	}
	return []Holder{h}, nil
}

// read fills in the GPUs from the pages.
func (h *Holder) read() error {
	devices, err := limits.Read(filepath.Join(h.Dir, limits.LimitsFile))
	if err != nil {
		return err
	}
	usage, err := limits.ReadUsage(filepath.Join(h.Dir, limits.UsageFile))
	if err != nil {
		return err
	}
	if len(usage.Devices) != len(devices) {
		return fmt.Errorf("%s: limits for %d GPUs, usage of %d", h.Dir, len(devices), len(usage.Devices))
	}
	for i, d := range devices {
		h.GPUs = append(h.GPUs, gpuStatus(d, usage, i))
	}
	return nil
}

func gpuStatus(d limits.Device, usage limits.Usage, i int) GPUStatus {
	used := usage.Devices[i]
	s := GPUStatus{
		UUID:               d.UUID,
		MemoryLimitBytes:   d.MemoryBytes,
		MemoryUsedBytes:    used.UsedBytes,
		ContextMemoryBytes: used.ContextBytes,
		GPUTimeSeconds:     used.GPUTime.Round(time.Microsecond).Seconds(),
		Refusals:           used.Refusals,
		Processes:          []ProcessStatus{},
	}
	if d.ComputePPM < limits.NoComputeLimit {
		s.ComputeLimitPPM, s.ComputeMaximumPPM = d.ComputePPM, d.MaximumPPM
	}
	for _, p := range usage.Processes {
		s.Processes = append(s.Processes, ProcessStatus{
			PID:             p.PID,
			Name:            p.Name,
			MemoryUsedBytes: p.Devices[i].UsedBytes,
			MemoryPeakBytes: p.Devices[i].PeakBytes,
		})
	}
	return s
}

// containersIn lists the containers of a node: directories <pod UID>/<name>.
func containersIn(dir string) ([]Holder, error) {
	pods, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	var all []Holder
	for _, pod := range pods {
		names, err := readDir(filepath.Join(dir, pod))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			h := Holder{PodUID: pod, Container: name, Dir: filepath.Join(dir, pod, name)}
			h.name()
			all = append(all, h)
		}
	}
	return all, nil
}

// name adds the pod's name, which the agent wrote beside the pages. It is for
// display: without it the UID has to do.
func (h *Holder) name() {
	data, err := os.ReadFile(filepath.Join(h.Dir, "assignment.json"))
	if err != nil {
		return
	}
	var written struct {
		Allocation struct{ Namespace, Pod string }
	}
	if json.Unmarshal(data, &written) == nil {
		h.Namespace, h.Pod = written.Allocation.Namespace, written.Allocation.Pod
	}
}

func groupsIn(dir string) ([]Holder, error) {
	names, err := readDir(dir)
	var all []Holder
	for _, name := range names {
		all = append(all, Holder{Group: name, Dir: filepath.Join(dir, name)})
	}
	return all, err
}

// readDir lists the directories in a directory; none in one that is missing.
func readDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for limits: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// WriteJSON writes holders as a list.
func WriteJSON(w io.Writer, holders []Holder) error {
	if holders == nil {
		holders = []Holder{}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(holders)
}

// WriteTable writes a line per holder and GPU.
func WriteTable(w io.Writer, holders []Holder) error {
	if len(holders) == 0 {
		_, err := fmt.Fprintln(w, "Nothing has limits here.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "HOLDER\tGPU\tMEMORY\tLIMIT\tTIME LIMIT\tGPU TIME\tREFUSALS\tPROCESSES")
	for _, h := range holders {
		for _, g := range h.GPUs {
			limit := "-"
			if g.ComputeLimitPPM > 0 {
				limit = percentTo(g.ComputeLimitPPM, g.ComputeMaximumPPM)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%.1fs\t%d\t%d\n", h.title(), g.UUID,
				mebibytes(g.MemoryUsedBytes), mebibytes(g.MemoryLimitBytes), limit,
				g.GPUTimeSeconds, g.Refusals, len(g.Processes))
		}
	}
	return t.Flush()
}

func (h Holder) title() string {
	switch {
	case h.Group != "":
		return "run " + h.Group
	case h.Pod != "":
		return h.Namespace + "/" + h.Pod + "/" + h.Container
	case h.PodUID != "":
		return h.PodUID + "/" + h.Container
	default:
		return "this container"
	}
}

// mebibytes rounds up, so that a limit that is passed by a byte shows.
func mebibytes(bytes uint64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }

// percent writes parts per million with no more digits than needed.
func percent(ppm uint32) string { return fmt.Sprintf("%g %%", float64(ppm)/10_000) }

// percentTo writes "20-50 %": a guarantee and a maximum above it, or "20 %" where it is 0.
func percentTo(guarantee, maximum uint32) string {
	if maximum == 0 {
		return percent(guarantee)
	}
	return fmt.Sprintf("%g-%s", float64(guarantee)/10_000, percent(maximum))
}
