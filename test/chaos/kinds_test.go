// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"math/rand/v2"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kinds are the kinds of pods that the test creates and deletes, each with its frequency.
var kinds = []struct {
	name   string
	weight int
	fill   func(*draft, *rand.Rand)
	make   func(*world, *draft) error
}{
	{"single", 2, single, (*world).makePod},
	{"several", 4, several, (*world).makePod},
	{"init", 3, withInit, (*world).makePod},
	{"sidecar", 2, withSidecar, (*world).makePod},
	{"restarting", 4, restarting, (*world).makePod},
	{"holding", 3, holding, (*world).makePod},
	{"ephemeral", 1, holding, (*world).makeEphemeral},
	{"namesake", 2, namesake, (*world).makePod},
	{"job", 2, several, (*world).makeJob},
	{"static", 2, holding, (*world).makeStatic},
	{"hurried", 3, hurried, (*world).makePod},
	{"whole", 1, whole, (*world).makePod},
}

func single(d *draft, r *rand.Rand) {
	d.pod.Spec.Containers = []corev1.Container{d.any("main", r)}
}

func several(d *draft, r *rand.Rand) {
	for i := range 2 + r.IntN(4) {
		d.pod.Spec.Containers = append(d.pod.Spec.Containers, d.any(fmt.Sprintf("c%d", i), r))
	}
}

func withInit(d *draft, r *rand.Rand) {
	for i := range 1 + r.IntN(3) {
		d.pod.Spec.InitContainers = append(d.pod.Spec.InitContainers, d.any(fmt.Sprintf("i%d", i), r))
	}
	d.pod.Spec.Containers = []corev1.Container{d.any("main", r), d.idle("beside", false)}
}

func withSidecar(d *draft, r *rand.Rand) {
	always := corev1.ContainerRestartPolicyAlways
	// Kubelet ends the sidecar when the pod's other containers have ended.
	sidecar := d.container("sidecar", askAny(r), false, fillScript(r, forEver))
	sidecar.RestartPolicy = &always
	d.pod.Spec.InitContainers = []corev1.Container{d.any("i0", r), sidecar}
	d.pod.Spec.Containers = []corev1.Container{d.any("main", r)}
}

// restarting makes a pod whose containers restart, for many containers at the price of one pod.
func restarting(d *draft, r *rand.Rand) {
	several(d, r)
	d.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	d.life = between(r, 15*time.Second, 40*time.Second)
}

func holding(d *draft, r *rand.Rand) {
	d.pod.Spec.Containers = []corev1.Container{d.hold("main", askAny(r), r), d.idle("beside", true)}
	d.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	d.life = between(r, 5*time.Second, 30*time.Second)
}

// namesake makes a pod that follows another pod of the same name.
func namesake(d *draft, r *rand.Rand) {
	several(d, r)
	d.pod.Name = fmt.Sprintf("same-%d", r.IntN(2))
	d.life = between(r, time.Second, 10*time.Second)
}

// hurried makes a pod that the test deletes during its creation.
func hurried(d *draft, r *rand.Rand) {
	several(d, r)
	d.life = between(r, 0, 1500*time.Millisecond)
}

func whole(d *draft, r *rand.Rand) {
	a := askMemory(gpuMemory / mib)
	d.pod.Spec.Containers = []corev1.Container{d.brief("main", a, r)}
}

// plan returns a draft of a random kind.
func (w *world) plan(r *rand.Rand, number int) (*draft, func(*world, *draft) error) {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	n := r.IntN(total)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			d := newDraft(fmt.Sprintf("%s-%d", k.name, number), k.name, r)
			d.life = between(r, 2*time.Second, 20*time.Second)
			k.fill(d, r)
			return d, k.make
		}
	}
	panic("a weight is negative")
}

func (w *world) makePod(d *draft) error {
	force := d.life%2 == 0 // as random as the lifetime
	d.end = func() error { return w.deletePod(d.pod.Name, d.key, force) }
	_, err := w.createPod(d.pod)
	return err
}

func (w *world) makeJob(d *draft) error {
	n := int32(2)
	if d.steady {
		n = 1
	}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: d.key, Labels: d.pod.Labels},
		Spec: batchv1.JobSpec{
			Completions: &n, Parallelism: &n,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: d.pod.Labels}, Spec: d.pod.Spec},
		},
	}
	d.end = func() error { return w.deleteJob(d.key) }
	return w.createJob(job)
}

func (w *world) makeStatic(d *draft) error {
	d.pod.Namespace = metav1.NamespaceDefault
	d.pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	d.end = func() error { return w.removeManifest(d.key) }
	return w.writeManifest(d.key, d.pod)
}

// makeEphemeral creates a pod that gets an ephemeral container while it runs. An ephemeral
// container cannot request resources.
func (w *world) makeEphemeral(d *draft) error {
	more := d.idle("ephemeral", false)
	if err := w.makePod(d); err != nil {
		return err
	}
	return w.addEphemeral(d.pod.Name, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: more.Name, Image: more.Image, ImagePullPolicy: more.ImagePullPolicy, Command: more.Command, Env: more.Env,
	}})
}
