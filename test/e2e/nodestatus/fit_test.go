// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// fitNamespace is the namespace of the pods.
const fitNamespace = "fit"

// fitPolicy applies the chart's policy for the mode fit, with more of the chart's values, until the
// test ends.
func fitPolicy(t *testing.T, values ...string) {
	t.Helper()
	admin := clientOf(t, plane.admin)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fitNamespace}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ServiceAccounts(fitNamespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	changed := func() bool { return admitted(t, podAsking(asks{"nri-vgpu.io/vgpu-memory": "1"})).Spec.Affinity != nil }
	eventually.Holds(t, 30*time.Second, "the API server applies no policy of an earlier test", func() bool { return !changed() })
	remove, err := testbed.ApplyFitPolicy(t.Context(), admin, "../../..", os.Stdout, append(values,
		"config.dialects.hami.enabled=true", "config.dialects.hami.number=hami.io/gpu", "config.dialects.hami.memory=hami.io/mem",
		"config.dialects.hami.memory_percentage=hami.io/percent", "config.dialects.hami.cores=hami.io/cores",
		"config.dialects.hami.priority=hami.io/priority", "config.dialects.hami.memory_factor=256", "config.dialects.hami.default_cores=5")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	eventually.Holds(t, 30*time.Second, "the API server applies the policy", changed)
	chooses := podAsking(asks{"nri-vgpu.io/vgpu-memory": "1"})
	chooses.Annotations = map[string]string{"nri-vgpu.io/use-gpu-type": "any"}
	eventually.Holds(t, 30*time.Second, "the API server applies the policy about choices", func() bool {
		_, err := admin.CoreV1().Pods(fitNamespace).Create(t.Context(), chooses, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsInvalid(err)
	})
}

// asks are the requests of a container.
type asks map[string]string

func containerAsking(name string, a asks) corev1.Container {
	limits := corev1.ResourceList{}
	for resourceName, amount := range a {
		limits[corev1.ResourceName(resourceName)] = resource.MustParse(amount)
	}
	return corev1.Container{Name: name, Image: "none", Resources: corev1.ResourceRequirements{Limits: limits}}
}

// podAsking returns a pod with an app container for each element.
func podAsking(apps ...asks) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "fit-"}}
	for i, a := range apps {
		pod.Spec.Containers = append(pod.Spec.Containers, containerAsking(fmt.Sprint("app", i), a))
	}
	return pod
}

// admitted returns a pod as the API server would create it.
func admitted(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := dryRun(t, pod)
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func dryRun(t *testing.T, pod *corev1.Pod) (*corev1.Pod, error) {
	t.Helper()
	return clientOf(t, plane.admin).CoreV1().Pods(fitNamespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// need is the need of a pod: a number of GPUs, and for each GPU MiB, percent of memory and percent of
// time.
type need struct {
	gpus                string // the class
	mib, percent, cores int
	exactly             int // the number of GPUs, if the class is larger
}

// count returns the number of GPUs.
func (n need) count() string {
	if n.exactly > 0 {
		return fmt.Sprint(n.exactly)
	}
	return n.gpus
}

// terms returns the conditions of the needs as text. The expressions come after the expressions of own.
func terms(own string, needs ...need) (all []string) {
	condition := func(key string, n int) string {
		if n == 0 {
			return key + " Exists"
		}
		return fmt.Sprint(key, " Gt ", n-1)
	}
	for _, n := range needs {
		for _, size := range []string{"a", "b", "c", "d"} {
			key := "fit-" + n.gpus + size
			all = append(all, own+strings.Join([]string{
				condition(key+"-memory", n.mib), condition(key+"-percent", n.percent), condition(key+"-cores", n.cores),
			}, ", "))
		}
	}
	var shape []string
	for _, n := range needs {
		shape = append(shape, fmt.Sprintf("%s-%d-%d-%d", n.count(), n.mib, n.percent, n.cores))
	}
	return append(all, own+"fit-held-"+strings.Join(shape, ".")+" Exists", own+"fit DoesNotExist")
}

// termsOf returns the required terms of a pod as text.
func termsOf(pod *corev1.Pod) (all []string) {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil || pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		var text []string
		for _, e := range slices.Concat(term.MatchFields, term.MatchExpressions) {
			text = append(text, strings.TrimSpace(strings.TrimPrefix(e.Key, "nri-vgpu.io/")+" "+string(e.Operator)+" "+strings.Join(e.Values, "|")))
		}
		all = append(all, strings.Join(text, ", "))
	}
	return all
}

func TestFitPolicy(t *testing.T) {
	fitPolicy(t)
	const number, memory, percent, cores = "nri-vgpu.io/vgpu-number", "nri-vgpu.io/vgpu-memory", "nri-vgpu.io/vgpu-memory-percentage", "nri-vgpu.io/vgpu-cores"
	const vnumber, vmemory, vpercent, vcores = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
	always := corev1.ContainerRestartPolicyAlways
	with := func(pod *corev1.Pod, inits ...corev1.Container) *corev1.Pod {
		pod.Spec.InitContainers = inits
		return pod
	}
	sidecar := containerAsking("sidecar", asks{memory: "1000"})
	sidecar.RestartPolicy = &always
	second := containerAsking("second", asks{memory: "4000"})
	second.RestartPolicy = &always
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want []need
	}{
		"memory":                       {podAsking(asks{memory: "4096"}), []need{{"1", 4096, 0, 0, 0}}},
		"in another notation":          {podAsking(asks{memory: "4k"}), []need{{"1", 4000, 0, 0, 0}}},
		"memory and time of two":       {podAsking(asks{number: "2", memory: "100", cores: "30"}), []need{{"2", 100, 0, 30, 0}}},
		"time alone":                   {podAsking(asks{cores: "30"}), []need{{"1", 0, 30, 30, 0}}},
		"percent":                      {podAsking(asks{percent: "40", cores: "30"}), []need{{"1", 0, 40, 30, 0}}},
		"three GPUs":                   {podAsking(asks{number: "3"}), []need{{"4", 0, 100, 0, 3}}},
		"eight GPUs":                   {podAsking(asks{number: "8", memory: "1"}), []need{{"8", 1, 0, 0, 0}}},
		"nine GPUs":                    {podAsking(asks{number: "9", memory: "1"}), []need{{"10", 1, 0, 0, 9}}},
		"sixteen GPUs":                 {podAsking(asks{number: "16", memory: "1"}), []need{{"16", 1, 0, 0, 0}}},
		"Volcano, exclusive":           {podAsking(asks{vnumber: "1", vmemory: "1000", vcores: "100"}), []need{{"1", 1000, 100, 100, 0}}},
		"Volcano, percent":             {podAsking(asks{vpercent: "30", vcores: "20"}), []need{{"1", 0, 30, 20, 0}}},
		"Volcano, a number alone":      {podAsking(asks{vnumber: "2"}), []need{{"2", 0, 100, 0, 0}}},
		"Alnair":                       {podAsking(asks{"alnair/vgpu-memory": "10", "alnair/vgpu-compute": "20"}), []need{{"1", 9729, 0, 20, 0}}},
		"Alnair, several containers":   {podAsking(asks{"alnair/vgpu-memory": "2"}, asks{"alnair/vgpu-memory": "2"}, asks{"alnair/vgpu-memory": "2"}), []need{{"1", 5633, 0, 0, 0}, {"4", 1537, 0, 0, 3}}},
		"Alnair, time alone":           {podAsking(asks{"alnair/vgpu-compute": "20"}), []need{{"1", 0, 100, 20, 0}}},
		"AWS, a part":                  {podAsking(asks{"k8s.amazonaws.com/vgpu": "3"}), []need{{"1", 0, 30, 30, 0}}},
		"AWS, more than two GPUs":      {podAsking(asks{"k8s.amazonaws.com/vgpu": "25"}), []need{{"4", 0, 100, 100, 3}}},
		"MetaGPU":                      {podAsking(asks{"cnvrg.io/metagpu": "30"}), []need{{"1", 0, 30, 30, 0}}},
		"HAMi":                         {podAsking(asks{"hami.io/gpu": "2", "hami.io/mem": "4", "hami.io/cores": "30"}), []need{{"2", 1024, 0, 30, 0}}},
		"HAMi, a number alone":         {podAsking(asks{"hami.io/gpu": "1"}), []need{{"1", 0, 100, 100, 0}}},
		"HAMi, percent":                {podAsking(asks{"hami.io/percent": "30"}), []need{{"1", 0, 30, 5, 0}}},
		"HAMi, all memory":             {podAsking(asks{"hami.io/percent": "100", "hami.io/cores": "20"}), []need{{"1", 0, 100, 20, 0}}},
		"HAMi, no limit on time":       {podAsking(asks{"hami.io/gpu": "1", "hami.io/cores": "0"}), []need{{"1", 0, 100, 0, 0}}},
		"HAMi, a priority alone":       {podAsking(asks{"hami.io/priority": "1"}), nil},
		"two containers":               {podAsking(asks{memory: "4096"}, asks{memory: "2048"}), []need{{"1", 6144, 0, 0, 0}, {"2", 4096, 0, 0, 0}}},
		"beside one without a request": {podAsking(asks{"cpu": "1"}, asks{memory: "2048"}), []need{{"1", 2048, 0, 0, 0}}},
		"in two dialects":              {podAsking(asks{memory: "4096"}, asks{"cnvrg.io/metagpu": "30"}), []need{{"1", 8192, 60, 30, 0}, {"1", 5852, 100, 30, 0}, {"2", 4096, 30, 30, 0}}},
		"MiB and percent":              {podAsking(asks{memory: "4096"}, asks{percent: "30"}), []need{{"1", 8192, 60, 0, 0}, {"1", 5852, 100, 0, 0}, {"2", 4096, 30, 0, 0}}},
		"a part beside a whole GPU":    {podAsking(asks{memory: "4096"}, asks{number: "1"}), []need{{"1", 8192, 200, 0, 0}, {"2", 4096, 100, 0, 0}}},
		"a part beside exclusive use":  {podAsking(asks{memory: "4096"}, asks{vnumber: "1", vmemory: "1000", vcores: "100"}), []need{{"1", 10192, 200, 100, 0}, {"2", 4096, 100, 100, 0}}},
		"MiB after percent":            {with(podAsking(asks{memory: "4096"}), containerAsking("init", asks{percent: "30"})), []need{{"1", 4096, 30, 0, 0}}},
		"percent beside a sidecar":     {with(podAsking(asks{}), sidecar, containerAsking("init", asks{percent: "30"})), []need{{"1", 2000, 60, 0, 0}, {"1", 1429, 100, 0, 0}, {"2", 1000, 30, 0, 0}}},
		"a larger init container":      {with(podAsking(asks{memory: "100"}), containerAsking("init", asks{memory: "8192"})), []need{{"1", 8192, 0, 0, 0}}},
		"an init container alone":      {with(podAsking(asks{}), containerAsking("init", asks{memory: "8192"})), []need{{"1", 8192, 0, 0, 0}}},
		"beside a sidecar":             {with(podAsking(asks{memory: "500"}), sidecar, containerAsking("init", asks{memory: "2000"})), []need{{"1", 3000, 0, 0, 0}, {"2", 2000, 0, 0, 0}}},
		"before a sidecar":             {with(podAsking(asks{memory: "500"}), containerAsking("init", asks{memory: "2000"}), sidecar), []need{{"1", 2000, 0, 0, 0}, {"2", 2000, 0, 0, 0}}},
		"a whole GPU before a sidecar": {with(podAsking(asks{}), containerAsking("init", asks{number: "1"}), sidecar), []need{{"1", 1000, 100, 0, 0}}},
		"between two sidecars":         {with(podAsking(asks{memory: "500"}), sidecar, containerAsking("init", asks{memory: "9000"}), second), []need{{"1", 10000, 0, 0, 0}, {"4", 9000, 0, 0, 3}}},
		"nothing":                      {podAsking(asks{"cpu": "1"}), nil},
		"amounts of zero":              {podAsking(asks{vnumber: "0", vmemory: "0"}, asks{"hami.io/gpu": "0"}), nil},
		"an amount of zero beside one": {podAsking(asks{vnumber: "0"}, asks{memory: "4096"}), []need{{"1", 4096, 0, 0, 0}}},
		"another plugin's":             {podAsking(asks{"nvidia.com/gpu": "1"}), nil},
		"more than numbers can hold":   {podAsking(asks{memory: "9000P"}, asks{memory: "9000P"}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := admitted(t, tt.pod)
			var want []string
			if tt.want != nil {
				want = terms("", tt.want...)
			}
			if diff := cmp.Diff(want, termsOf(pod)); diff != "" {
				t.Errorf("terms (-want +got):\n%s", diff)
			}
			checkTurn(t, pod, tt.want != nil)
		})
	}
}

// TestFitPolicyDividesTotals checks that the policy divides totals by the number of GPUs, as the agent
// does. Containers may have different GPUs only if the pod then holds no more than a quota counts.
func TestFitPolicyDividesTotals(t *testing.T) {
	fitPolicy(t, "config.dialects.native.amounts=total")
	const number, memory, percent, cores = "nri-vgpu.io/vgpu-number", "nri-vgpu.io/vgpu-memory", "nri-vgpu.io/vgpu-memory-percentage", "nri-vgpu.io/vgpu-cores"
	after := func(init asks, apps ...asks) *corev1.Pod {
		pod := podAsking(apps...)
		pod.Spec.InitContainers = []corev1.Container{containerAsking("init", init)}
		return pod
	}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want []need
	}{
		"one GPU":          {podAsking(asks{memory: "4096", cores: "30"}), []need{{"1", 4096, 0, 30, 0}}},
		"two GPUs":         {podAsking(asks{number: "2", memory: "4096", cores: "30"}), []need{{"2", 2048, 0, 15, 0}}},
		"rounded up":       {podAsking(asks{number: "2", memory: "4095", cores: "31"}), []need{{"2", 2048, 0, 16, 0}}},
		"percent":          {podAsking(asks{number: "3", percent: "100"}), []need{{"4", 0, 34, 0, 3}}},
		"all of two GPUs":  {podAsking(asks{number: "2", percent: "200", cores: "200"}), []need{{"2", 0, 100, 100, 0}}},
		"Volcano's amount": {podAsking(asks{"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "4096"}), []need{{"2", 4096, 0, 0, 0}}},
		"two containers":   {podAsking(asks{memory: "4096"}, asks{memory: "2048"}), []need{{"1", 6144, 0, 0, 0}, {"2", 4096, 0, 0, 0}}},
		"a smaller init container": {after(asks{memory: "3000"}, asks{memory: "4096"}, asks{memory: "2048"}),
			[]need{{"1", 6144, 0, 0, 0}, {"2", 4096, 0, 0, 0}}},
		"an init container larger than each app container": {after(asks{memory: "5000"}, asks{memory: "4096"}, asks{memory: "2048"}),
			[]need{{"1", 6144, 0, 0, 0}}},
		"an init container with more time": {after(asks{memory: "1024", cores: "40"}, asks{memory: "4096", cores: "30"}, asks{memory: "2048", cores: "20"}),
			[]need{{"1", 6144, 0, 50, 0}}},
		"an init container for both GPUs": {after(asks{number: "2", memory: "4096"}, asks{memory: "2048"}, asks{memory: "2048"}),
			[]need{{"2", 4096, 0, 0, 0}, {"2", 2048, 0, 0, 0}}},
		"an init container for more GPUs": {after(asks{number: "2", memory: "6000"}, asks{memory: "4096"}, asks{memory: "2048"}),
			[]need{{"2", 6144, 0, 0, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(terms("", tt.want...), termsOf(admitted(t, tt.pod))); diff != "" {
				t.Errorf("terms (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFitPolicyRefusesChoices checks that the API server refuses a pod that chooses GPUs by annotations,
// unless the pod selects nodes.
func TestFitPolicyRefusesChoices(t *testing.T) {
	fitPolicy(t)
	native, volcano, hami := asks{"nri-vgpu.io/vgpu-memory": "4096"}, asks{"volcano.sh/vgpu-memory": "4096"}, asks{"hami.io/gpu": "1"}
	on := func(pod *corev1.Pod, terms ...corev1.NodeSelectorTerm) *corev1.Pod {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
		return pod
	}
	label := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "gpu", Operator: corev1.NodeSelectorOpExists}}}
	name := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}}
	selected := podAsking(native)
	selected.Spec.NodeSelector = map[string]string{"gpu": "h100"}
	scheduled := podAsking(native)
	scheduled.Spec.SchedulerName = "volcano"
	for title, tt := range map[string]struct {
		pod        *corev1.Pod
		key, value string
		refused    bool
	}{
		"a model":                       {podAsking(native), "nri-vgpu.io/use-gpu-type", "H100", true},
		"other models":                  {podAsking(native), "nri-vgpu.io/nouse-gpu-type", "T4", true},
		"a UUID":                        {podAsking(native), "nri-vgpu.io/use-gpu-uuid", "GPU-1", true},
		"other UUIDs":                   {podAsking(native), "nri-vgpu.io/nouse-gpu-uuid", "GPU-1,GPU-2", true},
		"an empty list":                 {podAsking(native), "nri-vgpu.io/use-gpu-type", " , ", false},
		"Volcano's model":               {podAsking(volcano), "nvidia.com/use-gputype", "H100", true},
		"Volcano's UUID":                {podAsking(volcano), "volcano.sh/vgpu-nouse-gpuuuid", "GPU-1", true},
		"a GPU with MPS":                {podAsking(volcano), "volcano.sh/vgpu-mode", "mps", true},
		"any GPU":                       {podAsking(volcano), "volcano.sh/vgpu-mode", "hami-core", false},
		"HAMi's UUID":                   {podAsking(hami), "nvidia.com/use-gpuuuid", "GPU-1", true},
		"another dialect's annotation":  {podAsking(native), "nvidia.com/use-gputype", "H100", false},
		"a pod without a request":       {podAsking(asks{"cpu": "1"}), "nri-vgpu.io/use-gpu-type", "H100", false},
		"a policy of placement":         {podAsking(native), "nri-vgpu.io/placement-policy", "spread", false},
		"with a nodeSelector":           {selected, "nri-vgpu.io/use-gpu-type", "H100", false},
		"with a node affinity":          {on(podAsking(native), label, name), "nri-vgpu.io/use-gpu-type", "H100", false},
		"a scheduler that knows models": {scheduled, "nri-vgpu.io/use-gpu-type", "H100", false},
	} {
		t.Run(title, func(t *testing.T) {
			tt.pod.Annotations = map[string]string{tt.key: tt.value}
			_, err := clientOf(t, plane.admin).CoreV1().Pods(fitNamespace).Create(t.Context(), tt.pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if got := apierrors.IsInvalid(err); got != tt.refused || !tt.refused && err != nil {
				t.Fatalf("refused is %t: %v", got, err)
			}
			if tt.refused && !strings.Contains(err.Error(), "annotation "+tt.key+" chooses GPUs, which the scheduler does not know in scheduling.mode=fit: add a nodeSelector") {
				t.Errorf("the API server's error: %v", err)
			}
		})
	}
}

// checkTurn checks that exactly one container of a pod takes a turn, if any, and that this container
// requests GPUs.
func checkTurn(t *testing.T, pod *corev1.Pod, wanted bool) {
	t.Helper()
	turns := 0
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		limit, request := c.Resources.Limits[request.FitTurn], c.Resources.Requests[request.FitTurn]
		if limit.Cmp(request) != 0 || limit.Value() > 0 && len(c.Resources.Limits) < 2 {
			t.Errorf("container %s: %+v", c.Name, c.Resources)
		}
		turns += int(limit.Value())
	}
	if turns == 1 != wanted || turns > 1 {
		t.Errorf("the pod takes %d turns", turns)
	}
}

// TestFitPolicyPreventsPreemptionForTurns checks that only pods that cannot preempt take a turn.
// kube-scheduler would evict another pod to free a turn.
func TestFitPolicyPreventsPreemptionForTurns(t *testing.T) {
	fitPolicy(t)
	never := corev1.PreemptNever
	for name, class := range map[string]schedulingv1.PriorityClass{
		"fit-high":  {Value: 10},
		"fit-never": {Value: 10, PreemptionPolicy: &never},
		"fit-low":   {Value: -10},
	} {
		class.Name = name
		classes := clientOf(t, plane.admin).SchedulingV1().PriorityClasses()
		if _, err := classes.Create(t.Context(), &class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		pod := podAsking(asks{"nri-vgpu.io/vgpu-memory": "4096"})
		pod.Spec.PriorityClassName = name
		eventually.Holds(t, 10*time.Second, "the API server's admission knows the class "+name, func() bool {
			_, err := dryRun(t, pod)
			return err == nil
		})
		got := admitted(t, pod)
		checkTurn(t, got, name != "fit-high")
		if diff := cmp.Diff(terms("", need{"1", 4096, 0, 0, 0}), termsOf(got)); diff != "" {
			t.Errorf("%s: terms (-want +got):\n%s", name, diff)
		}
	}
}

// TestFitPolicyKeepsThePodsOwnTerms checks that each of a pod's own terms is combined with each
// condition, and that nothing else of its affinity changes.
func TestFitPolicyKeepsThePodsOwnTerms(t *testing.T) {
	fitPolicy(t)
	expression := func(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
	}
	pod := podAsking(asks{"nri-vgpu.io/vgpu-memory": "4096"})
	pod.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{
					MatchExpressions: []corev1.NodeSelectorRequirement{expression("zone", "In", "a", "b"), expression("old", "DoesNotExist")},
					MatchFields:      []corev1.NodeSelectorRequirement{expression("metadata.name", "In", "n")},
				},
				{},
				{MatchExpressions: []corev1.NodeSelectorRequirement{expression("size", "Gt", "3")}},
			}},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 5, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{expression("fast", "Exists")}},
			}},
		},
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
		}}},
	}
	got := admitted(t, pod)
	one := need{"1", 4096, 0, 0, 0}
	want := slices.Concat(terms("metadata.name In n, zone In a|b, old DoesNotExist, ", one), []string{""}, terms("size Gt 3, ", one))
	if diff := cmp.Diff(want, termsOf(got)); diff != "" {
		t.Errorf("terms (-want +got):\n%s", diff)
	}
	anti := got.Spec.Affinity.PodAntiAffinity
	last := anti.RequiredDuringSchedulingIgnoredDuringExecution[len(anti.RequiredDuringSchedulingIgnoredDuringExecution)-1]
	full := corev1.PodAffinityTerm{
		TopologyKey: corev1.LabelHostname, Namespaces: []string{testbed.Namespace},
		LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "nri-vgpu.io/fit-full-1-4096-0-0", Operator: metav1.LabelSelectorOpExists},
		}},
	}
	if diff := cmp.Diff(full, last); diff != "" {
		t.Errorf("the anti-affinity to nodes without room (-want +got):\n%s", diff)
	}
	anti.RequiredDuringSchedulingIgnoredDuringExecution = anti.RequiredDuringSchedulingIgnoredDuringExecution[:1]
	got.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if diff := cmp.Diff(pod.Spec.Affinity, got.Spec.Affinity); diff != "" {
		t.Errorf("the rest of the affinity (-want +got):\n%s", diff)
	}
}

// TestFitPolicyAllowsNoNodeThatThePodExcludes checks that a pod whose terms are all empty still matches no
// node.
func TestFitPolicyAllowsNoNodeThatThePodExcludes(t *testing.T) {
	fitPolicy(t)
	pod := podAsking(asks{"nri-vgpu.io/vgpu-memory": "4096"})
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}},
	}}
	if diff := cmp.Diff([]string{""}, termsOf(admitted(t, pod))); diff != "" {
		t.Errorf("terms (-want +got):\n%s", diff)
	}
}

// TestFitPolicyLeavesOtherSchedulersAlone checks that pods of Volcano's scheduler, and pods that need
// no scheduler, stay as they are.
func TestFitPolicyLeavesOtherSchedulersAlone(t *testing.T) {
	fitPolicy(t)
	volcano, bound := podAsking(asks{"nri-vgpu.io/vgpu-memory": "1"}), podAsking(asks{"nri-vgpu.io/vgpu-memory": "1"})
	volcano.Spec.SchedulerName, bound.Spec.NodeName = "volcano", "some"
	for _, pod := range []*corev1.Pod{volcano, bound} {
		if got := admitted(t, pod); got.Spec.Affinity != nil {
			t.Errorf("the pod for %q on %q has the affinity %v", pod.Spec.SchedulerName, pod.Spec.NodeName, got.Spec.Affinity)
		} else {
			checkTurn(t, got, false)
		}
	}
}

// TestPatcherMayWriteFitLabelsAlone checks that a patcher may change the labels about single GPUs and
// no other label.
func TestPatcherMayWriteFitLabelsAlone(t *testing.T) {
	w := &world{t: t, node: "labelled", admin: clientOf(t, plane.admin)}
	w.register()
	t.Cleanup(w.remove)
	stolen := clientOf(t, patcherConfig(t, w.node)).CoreV1().Nodes()
	patch := func(labels string) error {
		_, err := stolen.Patch(t.Context(), w.node, types.MergePatchType, []byte(`{"metadata":{"labels":{`+labels+`}}}`), metav1.PatchOptions{}, "status")
		return err
	}
	for _, allowed := range []string{
		`"nri-vgpu.io/fit":"true","nri-vgpu.io/fit-1a-memory":"5"`, `"nri-vgpu.io/fit-1a-memory":"6"`, `"nri-vgpu.io/fit":null,"nri-vgpu.io/fit-1a-memory":null`,
	} {
		if err := patch(allowed); err != nil {
			t.Errorf("%s: %v", allowed, err)
		}
	}
	for _, other := range []string{`"nri-vgpu.io/fitting":"true"`, `"zone":"a"`, `"kubernetes.io/hostname":"x"`, `"nri-vgpu.io/fit":"true","zone":"a"`} {
		if err := patch(other); !refused(err) {
			t.Errorf("%s was not refused: %v", other, err)
		}
	}
}

// TestAgentMayLabelItsOwnPodAlone checks that an agent may write the labels for full shapes, only on
// its own pod, and no other label.
func TestAgentMayLabelItsOwnPodAlone(t *testing.T) {
	const node = "labels-itself"
	admin := clientOf(t, plane.admin)
	cfg, err := credentials(t.Context(), plane.admin, "nri-vgpu", node)
	if err != nil {
		t.Fatal(err)
	}
	list, err := admin.CoreV1().Pods(system).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d pods on node %s: %v", len(list.Items), node, err)
	}
	stolen, own, other := clientOf(t, cfg), &list.Items[0], bare(t, admin, node, nil)
	label := func(pod *corev1.Pod, key string, value any) error {
		return patchPod(t, stolen, pod, map[string]any{"metadata": map[string]any{"labels": map[string]any{key: value}}}, "status")
	}
	const full = request.FitFull + "1-4096-0-0"
	for _, value := range []any{"true", nil} {
		if err := label(own, full, value); err != nil {
			t.Errorf("the agent may not write its label: %v", err)
		}
	}
	for name, refusal := range map[string]error{
		"label another pod":         label(other, full, "true"),
		"write another label":       label(own, "app", "x"),
		"write a label of the Node": label(own, request.FitHeld+"1-4096-0-0", "true"),
		"write a label by the pod":  patchPod(t, stolen, own, map[string]any{"metadata": map[string]any{"labels": map[string]any{full: "true"}}}),
	} {
		if !refused(refusal) {
			t.Errorf("the agent may %s: %v", name, refusal)
		}
	}
}
