// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// enabledNames returns the resources that the configuration claims. enabledNames omits the names of
// a disabled dialect: the names may belong to another device plugin on the same node.
func enabledNames(d config.Dialects) sets.Set[string] {
	return sets.New(request.Names(d)...).Insert(request.FitTurn)
}

// parseAdvertised returns the names in the annotation that are valid extended resources. Everyone
// who may annotate Nodes can write the annotation, and the patcher must never remove cpu or
// hugepages.
func parseAdvertised(annotation string) sets.Set[string] {
	names := sets.New[string]()
	for name := range strings.SplitSeq(annotation, ",") {
		if isExtendedResource(name) {
			names.Insert(name)
		}
	}
	return names
}

func formatAdvertised(desired Resources) string {
	names := make([]string, 0, len(desired))
	for name := range desired {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// isExtendedResource reports whether a name is an extended resource. By Kubernetes' rule, the name
// must have a domain other than Kubernetes' domains.
func isExtendedResource(name string) bool {
	domain, rest, ok := strings.Cut(name, "/")
	if !ok || domain == "" || rest == "" {
		return false
	}
	return domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}
