// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// ask is a container's request, with the part that the container must get.
type ask struct {
	limits testbed.Limits
	bytes  uint64 // of each GPU
	gpus   int    // 0: nothing
}

// askAny requests a small part in a random dialect.
func askAny(r *rand.Rand) ask {
	n := 1 + r.Int64N(2)
	size := []int64{700, 1000, 1536, 2048}[r.IntN(4)]
	switch r.IntN(8) {
	case 0:
		return ask{testbed.Limits{"alnair/vgpu-memory": n}, uint64(n) * 1000 * mib, 1}
	case 1:
		return ask{testbed.Limits{"k8s.amazonaws.com/vgpu": 1}, 2000 * mib, 1}
	case 2:
		return ask{testbed.Limits{"volcano.sh/vgpu-number": n, "volcano.sh/vgpu-memory": size}, uint64(size) * mib, int(n)}
	case 3:
		return ask{testbed.Limits{"cnvrg.io/metagpu": 5 * n}, uint64(n) * 1000 * mib, 1}
	case 4:
		return ask{testbed.Limits{testbed.Number: 2, testbed.Memory: size}, uint64(size) * mib, 2}
	case 5:
		return ask{testbed.Limits{testbed.Memory: size, testbed.Cores: 10}, uint64(size) * mib, 1}
	default:
		return ask{testbed.Limits{testbed.Memory: size}, uint64(size) * mib, 1}
	}
}

func askMemory(size int64) ask {
	return ask{testbed.Limits{testbed.Memory: size}, uint64(size) * mib, 1}
}

// mark is in the environment of a container's processes. mark identifies the processes without a
// query to another program, because the API server may be down, and the agent is under test.
type mark struct {
	subject   string
	container string
	bytes     uint64
	gpus      int
	eternal   bool // the container never ends by itself
}

const markVariable = "CHAOS"

func (m mark) String() string {
	return fmt.Sprintf("%s/%s/%d/%d/%t", m.subject, m.container, m.bytes, m.gpus, m.eternal)
}

func (m mark) where() string { return m.subject + "/" + m.container }

func parseMark(text string) (m mark, ok bool) {
	parts := strings.Split(strings.TrimSpace(text), "/")
	if len(parts) != 5 {
		return m, false
	}
	var errs [3]error
	m.subject, m.container = parts[0], parts[1]
	m.bytes, errs[0] = strconv.ParseUint(parts[2], 10, 64)
	m.gpus, errs[1] = strconv.Atoi(parts[3])
	m.eternal, errs[2] = strconv.ParseBool(parts[4])
	return m, errs == [3]error{}
}

// subject is a pod, or a job with its pods, that the test has created.
type subject struct {
	key  string // unique, and the host name of its containers
	kind string
	// ordered is true once the test ends the subject, or is about to end the subject. From then on,
	// events of the subject's containers do not count as disturbances.
	ordered atomic.Bool
	// hostile subjects may exceed their own limits, and may end in any way.
	hostile bool
	// steady subjects stay until the end of the test.
	steady bool
	// most is the most memory of a GPU that one of the subject's containers may hold.
	most uint64
	// end removes the subject, which may already be gone.
	end func() error
	// life is the time for which the subject may stay.
	life time.Duration
}

// subjects are all subjects ever created, by their key.
type subjects struct {
	mu    sync.Mutex
	byKey map[string]*subject
}

func (s *subjects) add(one *subject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = map[string]*subject{}
	}
	s.byKey[one.key] = one
}

func (s *subjects) get(key string) *subject {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[key]
}

// draft is a pod that has not been created yet.
type draft struct {
	*subject
	pod  *corev1.Pod
	calm bool // no failures are injected meanwhile
}

func newDraft(key, kind string, r *rand.Rand) *draft {
	pod := testbed.Pod(key)
	// Without a grace period the API server deletes a pod while the pod still runs.
	grace := r.Int64N(2)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	pod.Spec.Hostname = key
	pod.Spec.AutomountServiceAccountToken = new(bool)
	pod.Labels = map[string]string{subjectLabel: key}
	return &draft{subject: &subject{key: key, kind: kind}, pod: pod}
}

// subjectLabel is the label with a subject's key.
const subjectLabel = "chaos"

// container returns a marked container of the draft that runs a script.
func (d *draft) container(name string, a ask, eternal bool, script string) corev1.Container {
	c := testbed.Container(name, a.limits, "sh", "-c", script)
	m := mark{d.key, name, a.bytes, a.gpus, eternal}
	c.Env = []corev1.EnvVar{{Name: markVariable, Value: m.String()}}
	d.most = max(d.most, a.bytes)
	return c
}

// fillScript returns the command of a container that prints its mark and fills its GPU memory.
func fillScript(r *rand.Rand, hold string) string {
	ways := []string{"alloc", "vmm", "async", "managed", "pool"}
	// Like most programs, the script ignores SIGTERM.
	return "trap '' TERM; echo $" + markVariable + "; exec fill --chunk 256MiB --way " + ways[r.IntN(len(ways))] + " --hold " + hold
}

const forEver = "1000000"

// brief returns a container that fills its part and ends.
func (d *draft) brief(name string, a ask, r *rand.Rand) corev1.Container {
	return d.container(name, a, false, fillScript(r, fmt.Sprintf("0.%d", 1+r.IntN(9))))
}

// hold returns a container that fills its part and keeps the memory.
func (d *draft) hold(name string, a ask, r *rand.Rand) corev1.Container {
	return d.container(name, a, true, fillScript(r, forEver))
}

// idle returns a container that requests no GPU. The container's image requests all GPUs.
func (d *draft) idle(name string, eternal bool) corev1.Container {
	script := "exec sleep 0.5"
	if eternal {
		script = "exec sleep " + forEver
	}
	c := d.container(name, ask{}, eternal, script)
	c.Image = testbed.CUDAImage
	return c
}

// any returns a container that ends by itself.
func (d *draft) any(name string, r *rand.Rand) corev1.Container {
	if r.IntN(3) == 0 {
		return d.idle(name, false)
	}
	c := d.brief(name, askAny(r), r)
	if r.IntN(2) == 0 {
		c.Image = testbed.CUDAImage
	}
	return c
}

// next returns a number for a new subject's name.
func (s *subjects) next() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey)
}

// remain returns the subjects that the test has not ended, except the steady subjects.
func (s *subjects) remain() []*subject {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*subject
	for _, one := range s.byKey {
		if !one.steady {
			all = append(all, one)
		}
	}
	return all
}
